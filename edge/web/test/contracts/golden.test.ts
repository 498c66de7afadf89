import { isDeepStrictEqual } from "node:util";
import { decode } from "@msgpack/msgpack";
import { describe, expect, test } from "vitest";
import {
  ClaimRefusal,
  KeyClaimReply,
  KeyClaimRequest,
  MAX_REPLY_BYTES,
  parseClaimLink,
} from "../../src/contracts/claims";
import { decodeJson, encodeJson } from "../../src/contracts/codec";
import { MAX_MESSAGE_BYTES, seal, unseal } from "../../src/contracts/envelope";
import { parseManifest } from "../../src/contracts/manifest";
import { BODIES, Hello, type Kind } from "../../src/contracts/messages";
import { WorkOrder } from "../../src/contracts/plan";
import { DeviceProfile } from "../../src/contracts/profile";
import { TrainReport } from "../../src/contracts/report";
import type { Struct } from "../../src/contracts/shapes";
import { decodeTensors, encodeTensors } from "../../src/contracts/tensorFile";
import { newest, versions } from "./goldenFiles";
import notOurs from "./notOurs.json";

const KINDS = Object.keys(BODIES) as Kind[];
const A = "a1".repeat(32);
const B = "b2".repeat(32);
const C = "c3".repeat(32);
const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
/** Structs inside others that have such fields, by the field that holds them. */
const INSIDE: Readonly<Record<string, string>> = { profile: "DeviceProfile", programs: "Program" };

type Body = Record<string, unknown>;

/** `body` as a page reads it: without the fields that it is never asked for and does not write (notOurs.json). */
function ours(struct: string, body: Body): Body {
  const left = new Set((notOurs as Record<string, string[]>)[struct]);
  return Object.fromEntries(
    Object.entries(body)
      .filter(([name]) => !left.has(name))
      .map(([name, value]) => [name, name in INSIDE ? inside(INSIDE[name] as string, value) : value]),
  );
}

function inside(struct: string, value: unknown): unknown {
  return Array.isArray(value) ? value.map((one) => ours(struct, one as Body)) : ours(struct, value as Body);
}

const bodyOf = (data: Uint8Array) => (decode(data, { useBigInt64: true }) as { body: Record<string, unknown> }).body;

describe.each(KINDS)("golden %s", (kind) => {
  const struct = BODIES[kind] as Struct<unknown>;

  test("every version is read", () => {
    for (const data of versions(`${kind}.msgpack`)) {
      const envelope = unseal(data);
      expect([envelope.v, envelope.id, envelope.kind]).toEqual([1, "00112233445566778899aabbccddeeff", kind]);
      expect(envelope.sent_at).toBe(1_760_000_000.25);
      expect(Object.keys(envelope.read(struct) as object)).toEqual(struct.fields);
    }
  });

  test("today's bytes are written", async () => {
    const data = newest(`${kind}.msgpack`);
    const envelope = unseal(data);
    const body = envelope.read(struct);
    const sealed = await seal(kind, body as never, { id: envelope.id, sentAt: envelope.sent_at });
    const known = ours(struct.name, bodyOf(data));
    if (isDeepStrictEqual(known, bodyOf(data))) expect(sealed).toEqual(data);
    else expect(bodyOf(sealed)).toEqual(known);
  });

  test("another reader of msgpack finds the same values", () => {
    const data = newest(`${kind}.msgpack`);
    const whole = decode(data, { useBigInt64: false }) as { body: Record<string, unknown> };
    const body = unseal(data).read(struct) as Record<string, unknown>;
    const known = ours(struct.name, whole.body);
    expect(Object.keys(known)).toEqual(Object.keys(body));
    // Seeds of 64 bits are the one value the other reader rounds.
    expect({ ...body, data_seed: 0 }).toEqual({ ...known, data_seed: 0 });
  });
});

test("the sample order has the values of the Python sample", () => {
  const order = unseal(newest("order.msgpack")).read(WorkOrder);
  expect(order.data_seed).toBe(18_446_744_073_709_551_615n);
  expect({ ...order.hyper }).toEqual({ lr: 0.05, frobenius_lambda: 1e-4 });
  expect(order.schedule).toEqual({
    epochs: 0,
    steps: 8,
    turns: [
      { program: "train_u", advance_batch: false },
      { program: "train_v", advance_batch: true },
    ],
  });
  expect(order.weights).toEqual({ digest: C, size: 4000, encoding: "zstd", encoded_size: 3000 });
  expect(order.constants?.digest).toBe(A);
  expect(order.artifact_signature).toEqual(Uint8Array.from({ length: 64 }, (_, i) => i));
  expect(order.upload).toEqual(["fc1.u", "fc1.v"]);
});

test("an order of an older release has the defaults of what it does not say", () => {
  const order = unseal(versions("order.msgpack")[0] as Uint8Array).read(WorkOrder);
  expect([order.bulk, order.report_labels, order.artifact_signature]).toEqual(["", false, new Uint8Array(0)]);
});

test("an older hello has the defaults of its profile", () => {
  const hello = unseal(versions("hello.msgpack")[0] as Uint8Array).read(Hello);
  expect(hello.profile.cores).toEqual([]);
  expect(hello.profile.throttling).toBeNull();
  expect(hello.profile.step_lines).toEqual({});
});

test("profile and report have the values of the Python samples", () => {
  const profile = unseal(newest("profile.msgpack")).read(DeviceProfile);
  expect(profile.cores).toEqual([{ name: "Cortex-A72", count: 4, max_mhz: 1500 }]);
  expect(profile.step_lines.onnxruntime?.[0]?.convolution_gigamac_ms).toBe(12);
  expect(profile.sparse_below.executorch?.linear).toBe(0.24);
  const report = unseal(newest("report.msgpack")).read(TrainReport);
  expect([report.loss, report.labels, report.update.digest]).toEqual([1.25, [0, 3, 9], C]);
});

test("every golden manifest is read", () => {
  for (const data of versions("manifest.json")) expect(parseManifest(data).export_key).toBe(C);
  const manifest = parseManifest(newest("manifest.json"));
  // JSON has one kind of number here, so the values are compared and not the bytes.
  expect(manifest).toEqual(ours("ArtifactManifest", JSON.parse(text(newest("manifest.json")))));
  expect(manifest.files[1]).toEqual({ name: "eval.onnx", sha256: B, size: 500 });
  expect(manifest.cost.step_work?.matrix_macs).toBe(20_000);
  const oldest = parseManifest(versions("manifest.json")[0] as Uint8Array);
  expect([oldest.micro_batches, oldest.cost.step_work, oldest.cost.graph_bytes]).toEqual([1, null, 0]);
});

test("claims are read and written as in Python", () => {
  for (const [name, struct] of [
    ["key_claim_request.json", KeyClaimRequest],
    ["key_claim_reply.json", KeyClaimReply],
    ["claim_refusal.json", ClaimRefusal],
  ] as const) {
    const data = newest(name);
    const value = decodeJson<unknown>(data, struct as Struct<unknown>, MAX_REPLY_BYTES);
    expect(encodeJson(struct as Struct<unknown>, value)).toEqual(data);
  }
  expect(decodeJson(newest("claim_refusal.json"), ClaimRefusal, MAX_REPLY_BYTES).error.code).toBe("token-used");
});

test("the claim link is read", () => {
  expect(parseClaimLink(text(newest("claim_link.txt")))).toEqual({
    service: "https://192.168.1.10:8443",
    token: `0123456789abcdef.${"S".repeat(43)}`,
    pin: A,
    device: "pi-07",
  });
});

test("tensors are read bit for bit and written byte for byte", () => {
  const data = newest("tensors.safetensors");
  const tensors = decodeTensors(data, "golden");
  expect(tensors.get("fc1.u")).toEqual({
    dtype: "float32",
    shape: [3, 2],
    data: new Float32Array([0, 0.25, 0.5, 0.75, 1, 1.25]),
  });
  // 0, 1, 2 and 3 in half precision.
  expect(tensors.get("fc1.v")?.data).toEqual(new Uint16Array([0, 0x3c00, 0x4000, 0x4200]));
  expect(tensors.get("bn.num_batches_tracked")).toEqual({ dtype: "int64", shape: [], data: new BigInt64Array([7n]) });
  expect(tensors.get("mask")?.data).toEqual(new Uint8Array([1, 0, 1]));
  expect(tensors.get("empty")?.shape).toEqual([0, 3]);
  expect(encodeTensors(tensors)).toEqual(data);
});

test("a message that is too large is not sent", async () => {
  const data = new Uint8Array(MAX_MESSAGE_BYTES);
  await expect(seal("put", { assignment_id: A, digest: B, offset: 0, data })).rejects.toThrow(/send it as blocks/);
});
