import { encode } from "@msgpack/msgpack";
import { describe, expect, test } from "vitest";
import { ClaimRefusal, KeyClaimReply, MAX_REPLY_BYTES, parseClaimLink } from "../../src/contracts/claims";
import { decodeJson, decodeMsgpack } from "../../src/contracts/codec";
import { MAX_MESSAGE_BYTES, unseal } from "../../src/contracts/envelope";
import { ApportionError, ArtifactCorrupt, MessageRejected, UnsupportedVersion } from "../../src/contracts/errors";
import { parseManifest } from "../../src/contracts/manifest";
import { BODIES, Heartbeat, type Kind } from "../../src/contracts/messages";
import { BlobRef, WorkOrder } from "../../src/contracts/plan";
import { MemoryLine } from "../../src/contracts/profile";
import type { Struct } from "../../src/contracts/shapes";
import { splitmix64Halves } from "../../src/contracts/streams";
import { decodeTensors } from "../../src/contracts/tensorFile";
import { fromHex, newest } from "./goldenFiles";

const KINDS = Object.keys(BODIES) as Kind[];
const MUTATIONS = 300;
const bytes = (text: string) => new TextEncoder().encode(text);

/** What a read gives: "read", or the class of the error; anything but our own errors is thrown on. */
function outcome(read: () => unknown): string {
  try {
    read();
    return "read";
  } catch (error) {
    if (error instanceof ApportionError) return error.name;
    throw error;
  }
}

/** `data` with a few bytes changed, cut, doubled or put in, all drawn from `seed`. */
function mutated(data: Uint8Array, seed: number): Uint8Array {
  const draws = splitmix64Halves(BigInt(seed), 12);
  const changed = Array.from(data);
  const count = 1 + ((draws[0] as number) % 3);
  for (let i = 1; i <= count; i++) {
    const at = (draws[2 * i] as number) % Math.max(1, changed.length);
    const value = (draws[2 * i + 1] as number) & 0xff;
    const how = (draws[2 * i + 1] as number) >>> 30;
    if (how === 0) changed.splice(at);
    else if (how === 1) changed.splice(at, 0, value);
    else if (how === 2) changed.splice(at, 1);
    else changed[at] = value;
  }
  return Uint8Array.from(changed);
}

describe.each(KINDS)("%s", (kind) => {
  const data = newest(`${kind}.msgpack`);
  const body = BODIES[kind] as Struct<unknown>;

  test("cut at any byte is rejected", () => {
    for (let length = 0; length < data.length; length++) {
      expect(() => unseal(data.slice(0, length))).toThrow(MessageRejected);
    }
  });

  test("changed at random is read or rejected, nothing else", () => {
    const seen = new Set<string>();
    for (let seed = 0; seed < MUTATIONS; seed++) {
      seen.add(outcome(() => unseal(mutated(data, seed)).read(body)));
    }
    expect([...seen].sort()).toEqual(expect.arrayContaining(["MessageRejected"]));
    expect(["MessageRejected", "UnsupportedVersion", "read"]).toEqual(expect.arrayContaining([...seen]));
  });
});

test.each([
  ["a text of 4 GiB", "81a17adbffffffff41"],
  ["bytes of 4 GiB", "81a17ac6ffffffff41"],
  ["a list of 4 billion", "81a17addffffffff"],
  ["a map of 4 billion", "dfffffffff"],
  ["an extension of 4 GiB", "81a17ac9ffffffff01"],
  ["a byte that begins nothing", "81a17ac1"],
  ["text that is not UTF-8", "81a17aa1ff"],
  ["a list", "9101"],
  ["nothing at all", ""],
  ["a key that is a number", "820102a17601"],
  ["a second message after the first", "81a1760182"],
])("%s is rejected", (_, hex) => {
  expect(() => unseal(fromHex(hex))).toThrow(MessageRejected);
});

test("values nested deeply are rejected and do not end the stack", () => {
  const deep = new Uint8Array(200_000).fill(0x91);
  const message = new Uint8Array([0x81, 0xa1, 0x76, ...deep, 0x01]);
  expect(() => unseal(message)).toThrow(/nested more than/);
  const maps = Uint8Array.from({ length: 200_000 }, (_, i) => [0x81, 0xa1, 0x61][i % 3] as number);
  expect(() => unseal(maps)).toThrow(/nested more than/);
});

test("a message over the limit is not parsed", () => {
  expect(() => unseal(new Uint8Array(MAX_MESSAGE_BYTES + 1))).toThrow(/was not parsed/);
});

test("another version is said to be one, whatever else is in it", () => {
  expect(() => unseal(encode({ v: 2, what: "ever" }))).toThrow(UnsupportedVersion);
  expect(() => unseal(encode({}))).toThrow(/message version 0, this release speaks 1/);
  expect(() => unseal(encode({ v: "1" }))).toThrow(/\$\.v is the text "1"/);
});

test("unknown fields and an unknown kind pass", () => {
  const extra = { v: 1, id: "i", kind: "new", sent_at: 1, body: { a: [1, { b: 2 }] }, more: null, __proto__: null };
  const envelope = unseal(encode(extra));
  expect([envelope.kind, envelope.body, envelope.signature.length]).toEqual(["new", encode(extra.body), 0]);
});

test("a body's exact bytes are kept, however they were written", () => {
  // {"reason": "x"} with a map 16 and a str 8, as no writer here would.
  const body = fromHex("de0001d906726561736f6ed90178");
  const head = fromHex("85a17601a26964a161a46b696e64a3627965a773656e745f617401a4626f6479");
  const envelope = unseal(Uint8Array.from([...head, ...body]));
  expect(envelope.body).toEqual(body);
  expect(envelope.read(BODIES.bye)).toEqual({ reason: "x" });
});

test.each([
  ["a float where a whole number belongs", { digest: "d", size: 1.5 }, /\$\.size is the float 1.5/],
  ["more than 2^53", { digest: "d", size: 2n ** 53n }, /\$\.size is 9007199254740992, a whole number/],
  ["a text where a number belongs", { digest: "d", size: "1" }, /\$\.size is the text "1"/],
  ["true where a number belongs", { digest: "d", size: true }, /\$\.size is true/],
  ["null where a text belongs", { digest: null, size: 1 }, /\$\.digest is null/],
  ["an unknown name", { digest: "d", size: 1, encoding: "gzip" }, /\$\.encoding is the text "gzip", one of raw, zstd/],
  ["a missing field", { digest: "d" }, /BlobRef has no field 'size'/],
  ["a list", ["d", 1], /\$ is a list, a map expected/],
])("%s is rejected with its place", (_, value, message) => {
  expect(() => decodeMsgpack(encode(value, { useBigInt64: true }), BlobRef, 1000)).toThrow(message);
});

test("figures outside their bounds are rejected", () => {
  const line = { scale: 1, offset_bytes: 0 };
  expect(decodeMsgpack(encode(line), MemoryLine, 1000).points).toBe(0);
  for (const scale of [-0.5, 2e9, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => decodeMsgpack(encode({ ...line, scale }), MemoryLine, 1000)).toThrow(MessageRejected);
  }
});

test("a dictionary finds nothing that was not sent", () => {
  const order = unseal(newest("order.msgpack")).read(WorkOrder);
  expect([order.hyper.constructor, order.hyper.lr]).toEqual([undefined, 0.05]);
});

test("make fills in defaults and asks for the rest", () => {
  expect(Heartbeat.make({ state: "idle" })).toEqual({
    state: "idle",
    assignment_id: "",
    step: 0,
    total_steps: 0,
    loss: null,
    reason: "",
    waiting_for: "",
  });
  expect(() => Heartbeat.make({})).toThrow("Heartbeat needs a value for 'state'");
});

describe("manifests", () => {
  const golden = newest("manifest.json");
  type Json = Record<string, Record<string, unknown>[]> & Record<string, unknown>;
  const changed = (change: (manifest: Json) => void) => {
    const manifest = JSON.parse(new TextDecoder().decode(golden)) as Json;
    change(manifest);
    return bytes(JSON.stringify(manifest));
  };

  test.each<[string, (manifest: Json) => void, RegExp]>([
    ["a file in a folder", (m) => Object.assign(m.files?.[0] ?? {}, { name: "../train.onnx" }), /not a plain name/],
    ["a file with two dots", (m) => Object.assign(m.files?.[0] ?? {}, { name: "a..b" }), /not a plain name/],
    ["a digest in capitals", (m) => Object.assign(m.files?.[0] ?? {}, { sha256: "A1".repeat(32) }), /lower-case hex/],
    ["a file twice", (m) => Object.assign(m.files?.[1] ?? {}, { name: "train.onnx" }), /appears twice/],
    ["a negative size", (m) => Object.assign(m.files?.[1] ?? {}, { size: -1 }), /has size -1/],
    ["a tensor twice", (m) => Object.assign(m.tensors?.[0] ?? {}, { name: "y" }), /a tensor name appears twice/],
    ["a negative dimension", (m) => Object.assign(m.tensors?.[2] ?? {}, { shape: [-1] }), /sizes must be counts/],
    ["a huge dimension", (m) => Object.assign(m.tensors?.[2] ?? {}, { shape: [2 ** 41] }), /sizes must be counts/],
    ["an unknown input", (m) => Object.assign(m.programs?.[0] ?? {}, { inputs: ["nosuch"] }), /\[nosuch\]/],
    ["an unknown file", (m) => Object.assign(m.programs?.[0] ?? {}, { file: "no.onnx" }), /names file 'no.onnx'/],
    ["an unknown role", (m) => Object.assign(m.tensors?.[0] ?? {}, { role: "magic" }), /\$\.tensors\[0\]\.role/],
    ["half a batch", (m) => Object.assign(m, { batch: 1.5 }), /\$\.batch is 1.5/],
  ])("with %s are rejected", (_, change, message) => {
    expect(() => parseManifest(changed(change))).toThrow(message);
    expect(() => parseManifest(changed(change))).toThrow(MessageRejected);
  });

  test("of another schema are of another version", () => {
    expect(() => parseManifest(changed((m) => Object.assign(m, { schema: "apportion.manifest/2" })))).toThrow(
      UnsupportedVersion,
    );
    expect(() => parseManifest(bytes("{}"))).toThrow(UnsupportedVersion);
  });

  test.each(["", "[]", "null", "1", '{"schema":1}', "{", "[".repeat(200_000), "\ufeff{}"])(
    "that are no manifest are rejected (%#)",
    (text) => {
      expect(() => parseManifest(bytes(text))).toThrow(MessageRejected);
    },
  );

  test("changed at random are read or rejected, nothing else", () => {
    for (let seed = 0; seed < 1000; seed++) {
      expect(["read", "MessageRejected", "UnsupportedVersion"]).toContain(
        outcome(() => parseManifest(mutated(golden, seed))),
      );
    }
  });

  test("over 8 MiB are not parsed", () => {
    expect(() => parseManifest(new Uint8Array(8 * 1024 * 1024 + 1))).toThrow(/was not parsed/);
  });
});

test("claims changed at random are read or rejected, nothing else", () => {
  for (let seed = 0; seed < 500; seed++) {
    for (const [name, struct] of [
      ["key_claim_reply.json", KeyClaimReply],
      ["claim_refusal.json", ClaimRefusal],
    ] as const) {
      const read = () => decodeJson(mutated(newest(name), seed), struct as Struct<unknown>, MAX_REPLY_BYTES);
      expect(["read", "MessageRejected"]).toContain(outcome(read));
    }
  }
});

describe("claim links", () => {
  const token = `0123456789abcdef.${"S".repeat(43)}`;
  const rest = `d=pi-07&t=${token}&p=${"A".repeat(43)}`;

  test.each([
    [`http://127.0.0.1:8080/join#${rest}`, "http://127.0.0.1:8080"],
    [`http://localhost/join#${rest}`, "http://localhost:80"],
    [`http://[::1]:8080/join#${rest}`, "http://[::1]:8080"],
    [` https://broker.local/join#${rest}\n`, "https://broker.local:443"],
  ])("%s is of %s", (link, service) => {
    expect(parseClaimLink(link).service).toBe(service);
  });

  test.each([
    [`http://192.168.1.10/join#${rest}`, /is not https/],
    [`https://broker.local/other#${rest}`, /is not https/],
    [`javascript:alert(1)//join#${rest}`, /is not https/],
    [`https://broker.local/join#d=a&p=${"A".repeat(43)}`, /has no token/],
    [`https://broker.local/join#t=${token}`, /has no pin/],
    [`https://broker.local/join#d=../x&t=${token}&p=${"A".repeat(43)}`, /LINK: device/],
    ["nonsense", /not a link/],
  ])("%s is refused without its token", (link, message) => {
    expect(() => parseClaimLink(link)).toThrow(message);
    expect(outcome(() => parseClaimLink(link))).toBe("ConfigError");
    try {
      parseClaimLink(link);
    } catch (error) {
      expect(String(error)).not.toContain(token);
    }
  });
});

test("tensor files changed at random are read or corrupt, nothing else", () => {
  const golden = newest("tensors.safetensors");
  const seen = new Set<string>();
  for (let seed = 0; seed < 2000; seed++) seen.add(outcome(() => decodeTensors(mutated(golden, seed), "here")));
  expect([...seen].sort()).toEqual(["ArtifactCorrupt", "read"]);
  for (let length = 0; length < golden.length; length++) {
    expect(() => decodeTensors(golden.slice(0, length), "here")).toThrow(ArtifactCorrupt);
  }
});
