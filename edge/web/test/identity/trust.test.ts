import { afterEach, describe, expect, test, vi } from "vitest";
import { seal, unseal } from "../../src/contracts/envelope";
import { ConfigError, SignatureRejected } from "../../src/contracts/errors";
import { WorkOrder } from "../../src/contracts/plan";
import { claimText, messageText } from "../../src/contracts/signing";
import { fromBase64, toBase64 } from "../../src/identity/base64";
import { DeviceKey } from "../../src/identity/deviceKey";
import { verifyEd25519, verifyInScript } from "../../src/identity/ed25519";
import { messageSigner } from "../../src/identity/messageSigner";
import { Trust } from "../../src/identity/trust";
import { fromHex, newest, vectors } from "../contracts/goldenFiles";

const { signatures, browser_signatures: browser } = vectors();
const KEY = fromHex(signatures.public_key);
const MANIFEST = fromHex(signatures.manifest.hex);
const BODY = fromHex(signatures.order.hex);
const ORDER = unseal(newest("order.msgpack")).read(WorkOrder);
const ECDSA = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;

/** PEM of an Ed25519 key, or of anything else with a head of its own. */
function pem(key: Uint8Array, head = fromHex("302a300506032b6570032100")): string {
  return `-----BEGIN PUBLIC KEY-----\n${toBase64(Uint8Array.from([...head, ...key]))}\n-----END PUBLIC KEY-----\n`;
}

afterEach(() => vi.restoreAllMocks());

describe.each(["by WebCrypto", "in JavaScript"])("signatures of the page, checked %s", (how) => {
  function choose(): void {
    if (how === "in JavaScript") {
      vi.spyOn(crypto.subtle, "importKey").mockRejectedValue(new DOMException("no Ed25519", "NotSupportedError"));
    }
  }

  test("are good for what they sign", async () => {
    choose();
    const trust = Trust.fromPem(pem(KEY));
    await trust.checkManifest(MANIFEST, fromHex(signatures.manifest.signature));
    await trust.checkOrder(ORDER, BODY, fromHex(signatures.order.signature));
  });

  test("are good for nothing else", async () => {
    choose();
    const trust = Trust.fromPem(pem(KEY));
    const signature = fromHex(signatures.manifest.signature);
    const changed = MANIFEST.slice();
    changed[3] = (changed[3] as number) ^ 1;
    await expect(trust.checkManifest(changed, signature)).rejects.toThrow(SignatureRejected);
    // An order's signature is none of a manifest with the same bytes, and the other way round.
    await expect(trust.checkManifest(BODY, fromHex(signatures.order.signature))).rejects.toThrow(SignatureRejected);
    await expect(trust.checkOrder(ORDER, MANIFEST, signature)).rejects.toThrow(SignatureRejected);
    const broken = signature.slice();
    broken[63] = (broken[63] as number) ^ 0x80;
    await expect(trust.checkManifest(MANIFEST, broken)).rejects.toThrow(/by none of the 1 trusted key/);
  });

  test("are refused when they are missing or of another length, with the order's id", async () => {
    choose();
    const trust = Trust.fromPem(pem(KEY));
    const check = trust.checkOrder(ORDER, BODY, new Uint8Array(0));
    await expect(check).rejects.toMatchObject({ code: "bad-signature", assignmentId: ORDER.assignment_id });
    await expect(trust.checkManifest(MANIFEST, new Uint8Array(63))).rejects.toThrow(/a signature of 63 bytes/);
    await expect(trust.checkManifest(MANIFEST, new Uint8Array(64))).rejects.toThrow(SignatureRejected);
  });
});

test("both ways to check agree on signatures that were changed", async () => {
  const signature = fromHex(signatures.manifest.signature);
  for (let at = 0; at < 64; at += 3) {
    const changed = signature.slice();
    changed[at] = (changed[at] as number) ^ 0x11;
    expect(await verifyEd25519(KEY, MANIFEST, changed)).toBe(false);
    expect(verifyInScript(KEY, MANIFEST, changed)).toBe(false);
  }
});

test("any of several keys is enough", async () => {
  const other = crypto.getRandomValues(new Uint8Array(32));
  const trust = Trust.fromPem(pem(other) + pem(KEY));
  await trust.checkManifest(MANIFEST, fromHex(signatures.manifest.signature));
  await expect(trust.checkManifest(BODY, fromHex(signatures.manifest.signature))).rejects.toThrow("2 trusted keys");
});

test.each([
  ["", /is not PEM/],
  ["ssh-ed25519 AAAA", /is not PEM/],
  [`${pem(KEY)}and more`, /is not PEM/],
  [pem(KEY.slice(1)), /is no Ed25519 key/],
  [pem(KEY, fromHex("302a300506032b656e032100")), /is no Ed25519 key/],
  ["-----BEGIN PUBLIC KEY-----\nA\n-----END PUBLIC KEY-----", /is not base64/],
])("what is no key is refused (%#)", (text, message) => {
  expect(() => Trust.fromPem(text)).toThrow(message);
  expect(() => Trust.fromPem(text)).toThrow(ConfigError);
});

describe("this device's key", () => {
  test("signs what the page says, as the vectors' key did", async () => {
    const { message, claim, public_key } = browser;
    const text = messageText(message.federation, message.device, message.kind, message.id, fromHex(message.body));
    expect(text).toEqual(fromHex(message.text));
    expect(claimText(claim.token, public_key)).toEqual(fromHex(claim.text));
    const key = await crypto.subtle.importKey("spki", fromBase64(public_key), ECDSA, false, ["verify"]);
    expect(await crypto.subtle.verify(ECDSA, key, fromHex(message.signature), text)).toBe(true);
    expect(await crypto.subtle.verify(ECDSA, key, fromBase64(claim.proof), fromHex(claim.text))).toBe(true);
  });

  test("cannot be read, not even by this page", async () => {
    const key = await DeviceKey.make();
    expect(key.pair.privateKey.extractable).toBe(false);
    await expect(crypto.subtle.exportKey("pkcs8", key.pair.privateKey)).rejects.toThrow();
  });

  test("signs the exact body, kind and id of a message", async () => {
    const key = await DeviceKey.make();
    const sign = messageSigner(key, "digits", "phone-1");
    const sealed = unseal(await seal("heartbeat", { ...HEARTBEAT, loss: 3 }, { id: "ab", sign }));
    expect(sealed.signature).toHaveLength(64);
    const spki = fromBase64(await key.publicKey());
    const verifying = await crypto.subtle.importKey("spki", spki, ECDSA, false, ["verify"]);
    const check = (kind: string) => {
      const text = messageText("digits", "phone-1", kind, "ab", sealed.body);
      return crypto.subtle.verify(ECDSA, verifying, sealed.signature as Uint8Array<ArrayBuffer>, text);
    };
    expect([await check("heartbeat"), await check("bye")]).toEqual([true, false]);
  });

  test("signs no name with a line feed", () => {
    expect(() => messageText("a", "b\nc", "bye", "1", new Uint8Array(0))).toThrow(/line feed cannot be signed/);
  });

  test("is not to be had where the page is not safe", async () => {
    vi.spyOn(globalThis, "crypto", "get").mockReturnValue({} as Crypto);
    await expect(DeviceKey.make()).rejects.toThrow(ConfigError);
  });
});

const HEARTBEAT = {
  state: "idle",
  assignment_id: "",
  step: 0,
  total_steps: 0,
  loss: null,
  reason: "",
  waiting_for: "",
} as const;
