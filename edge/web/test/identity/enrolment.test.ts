import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { EnrolmentFailed } from "../../src/contracts/errors";
import { enrol, enrolledKey, enrolment, forget } from "../../src/identity/enrolment";
import { IndexedDbRecords } from "../../src/store/indexedDbRecords";
import { ClaimService, SIGNING_PUBLIC } from "./claimService";

let service: ClaimService;
let records: IndexedDbRecords;
let databases = 0;

beforeEach(async () => {
  service = new ClaimService();
  await service.start();
  records = new IndexedDbRecords(`enrolment-${databases++}`);
});

afterEach(async () => {
  await service.stop();
  await records.close();
});

test("a link makes an enrolment that is kept with its key", async () => {
  const before = Date.now() / 1000;
  const made = await enrol(service.link(), { records });
  expect(made).toMatchObject({
    device: "phone-1",
    federation: "digits",
    broker: "ws://127.0.0.1:8083",
    user: "phone-1",
    password: "password-1",
    signing_public: SIGNING_PUBLIC,
  });
  expect(made.claimed_at).toBeGreaterThanOrEqual(before);
  expect(await enrolment(records)).toEqual(made);
  const key = await enrolledKey(records);
  expect(await key?.publicKey()).toBe([...service.tokens.values()][0]);
  expect(key?.pair.privateKey.extractable).toBe(false);
  expect(await records.keys("identity/")).toEqual(["identity/enrolled"]);
});

test("nothing is kept before there is a claim, and after it was forgotten", async () => {
  expect([await enrolment(records), await enrolledKey(records)]).toEqual([null, null]);
  await enrol(service.link(), { records });
  await forget(records);
  expect([await enrolment(records), await enrolledKey(records)]).toEqual([null, null]);
  expect(await records.keys("")).toEqual([]);
});

describe.each([
  ["cut", "service-unreachable"],
  ["half", "answer-lost"],
] as const)("an answer that is %s", (failure, code) => {
  test("is had by the same link again, with the same key", async () => {
    const link = service.link();
    service.failures.push(failure);
    await expect(enrol(link, { records })).rejects.toMatchObject({ code, hint: expect.stringContaining("same link") });
    expect(await enrolment(records)).toBeNull();
    const claimedBy = service.tokens.get(link.token);
    const made = await enrol(link, { records });
    expect(made.password).toBe("password-2");
    expect(await (await enrolledKey(records))?.publicKey()).toBe(claimedBy);
  });
});

test("the same link again after it worked gives what there is, and asks nobody", async () => {
  const link = service.link();
  const made = await enrol(link, { records });
  expect(await enrol(link, { records })).toEqual(made);
  expect(service.claims).toBe(1);
});

test("a link that another device has used is refused, and what there was stays", async () => {
  const made = await enrol(service.link(), { records });
  service.revoke();
  const link = service.link();
  const elsewhere = new IndexedDbRecords(`enrolment-${databases++}`);
  await enrol(link, { records: elsewhere });
  await elsewhere.close();
  await expect(enrol(link, { records })).rejects.toMatchObject({ code: "token-used" });
  expect(await enrolment(records)).toEqual(made);
});

test("another link replaces enrolment and key", async () => {
  await enrol(service.link(), { records });
  const first = service.standing;
  service.revoke();
  const made = await enrol(service.link(), { records });
  expect(made.password).toBe("password-2");
  expect(await enrolment(records)).toEqual(made);
  expect(await (await enrolledKey(records))?.publicKey()).toBe(service.standing);
  expect(service.standing).not.toBe(first);
});

test("a link for another device replaces them too", async () => {
  await enrol(service.link(), { records });
  service.standing = "";
  service.changes = { device: "phone-2", user: "phone-2" };
  expect((await enrol(service.link("phone-2"), { records })).device).toBe("phone-2");
  expect((await enrolment(records))?.device).toBe("phone-2");
});

test("a device that the coordinator knows by another key is refused, with the reason", async () => {
  await enrol(service.link(), { records });
  await forget(records);
  await expect(enrol(service.link(), { records })).rejects.toMatchObject({ code: "identity-refused" });
  expect(await records.keys("")).toEqual([]);
});

test("a refusal has the service's code, message and hint, and leaves nothing behind", async () => {
  const link = { ...service.link(), token: `fedcba9876543210.${"X".repeat(43)}` };
  const failure = await enrol(link, { records }).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(EnrolmentFailed);
  expect(failure).toMatchObject({ code: "no-such-token", hint: "make another" });
  expect(String(failure)).toContain("refused: no-such-token it is");
  expect(String(failure)).not.toContain(link.token);
  expect(await records.keys("")).toEqual([]);
});

test("a service that is busy is asked again with the same key", async () => {
  const link = service.link();
  const body = JSON.stringify({ error: { code: "too-many-claims", message: "wait 2 s" } });
  service.failures.push({ status: 429, body });
  await expect(enrol(link, { records })).rejects.toMatchObject({ code: "too-many-claims", hint: "" });
  const claimedBy = service.tokens.get(link.token);
  await enrol(link, { records });
  expect(await (await enrolledKey(records))?.publicKey()).toBe(claimedBy);
});

test.each([
  { status: 200, body: "<html>" },
  { status: 500, body: "oops" },
  { status: 404, body: "" },
  { status: 200, body: "{}" },
])("what is no claim service is said to be none (%#)", async (failure) => {
  const link = service.link();
  service.failures.push(failure);
  await expect(enrol(link, { records })).rejects.toMatchObject({ code: "not-a-claim-service" });
  expect(await enrolment(records)).toBeNull();
});

test("a service that is away is said to be so", async () => {
  const link = service.link();
  await service.stop();
  await expect(enrol(link, { records })).rejects.toMatchObject({ code: "service-unreachable" });
  service = new ClaimService();
  await service.start();
});

test.each([
  [{ device: "phone-2", user: "phone-2" }, /the link is for 'phone-1'/],
  [{ device: "../x", user: "../x" }, /device '\.\.\/x' is not usable/],
  [{ federation: "a/b" }, /federation 'a\/b'/],
  [{ broker: "ws://192.168.1.10:8083" }, /is not wss/],
  [{ broker: "https://broker.local" }, /is not wss/],
  [{ broker: "nonsense" }, /is not wss/],
  [{ user: "someone" }, /user 'someone'/],
  [{ password: "" }, /no password/],
  [{ signing_public: "none" }, /is not PEM/],
])("a reply that cannot be used is not kept (%#)", async (changes, message) => {
  service.changes = changes;
  const failure = await enrol(service.link(), { records }).catch((error: unknown) => error);
  expect(failure).toMatchObject({ code: "bad-reply", message: expect.stringMatching(message) });
  expect(await enrolment(records)).toBeNull();
});

test("a link that names no device takes the one it gets", async () => {
  expect((await enrol(service.link(""), { records })).device).toBe("phone-1");
});

test("a broker with TLS is taken wherever it is", async () => {
  service.changes = { broker: "wss://broker.example:8084/mqtt" };
  expect((await enrol(service.link(), { records })).broker).toBe("wss://broker.example:8084/mqtt");
});
