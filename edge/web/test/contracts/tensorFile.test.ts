import { describe, expect, test } from "vitest";
import { ArtifactCorrupt, UpdateRejected } from "../../src/contracts/errors";
import { expand, keptValues, packMask, unpacked, unpackMask } from "../../src/contracts/packing";
import { checkTensors, decodeTensors, encodeTensors, MAX_HEADER_BYTES } from "../../src/contracts/tensorFile";
import { byteCount, isCarried, type Tensor, type TensorSpec } from "../../src/contracts/tensors";

function file(header: unknown, body = 0): Uint8Array {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const data = new Uint8Array(8 + text.length + body);
  new DataView(data.buffer).setBigUint64(0, BigInt(text.length), true);
  data.set(text, 8);
  return data;
}

const entry = (shape: unknown, begin: unknown, end: unknown, dtype: unknown = "F32") => ({
  dtype,
  shape,
  data_offsets: [begin, end],
});
const bool = (...entries: number[]): Tensor => ({
  dtype: "bool",
  shape: [entries.length],
  data: Uint8Array.from(entries),
});
const floats = (...values: number[]): Tensor => ({
  dtype: "float32",
  shape: [values.length],
  data: Float32Array.from(values),
});

describe("a tensor file that lies is corrupt", () => {
  test.each<[Uint8Array, RegExp]>([
    [Uint8Array.from([0, 0, 0, 0, 0, 0, 0, 0x80, 0x7b, 0x7d]), /tensor header says 9223372036854775808 bytes/],
    [file(" ".repeat(MAX_HEADER_BYTES + 1)), /the limit is 4194304/],
    [file("not json"), /not JSON/],
    [file("[".repeat(100_000)), /not JSON/],
    [file([]), /not an object/],
    [file({ a: entry([1], 0, 4, "F64") }, 4), /not readable/],
    [file({ a: entry([1], 0, 4, ["F32"]) }, 4), /not readable/],
    [file({ a: { dtype: "F32", shape: [1] } }, 4), /not readable/],
    [file({ a: null }, 4), /not readable/],
    [file({ a: entry("12", 0, 4) }, 4), /not readable/],
    [file({ a: entry([-1], 0, 4) }, 4), /is no count/],
    [file({ a: entry([1.5], 0, 4) }, 4), /is no count/],
    [file({ a: entry([true], 0, 4) }, 4), /is no count/],
    [file(`{"a":{"dtype":"F32","shape":[${"9".repeat(5000)}],"data_offsets":[0,4]}}`, 4), /is no count/],
    [file({ a: entry([1], 4, 0) }, 4), /needs 4 bytes/],
    [file({ a: entry([2], 0, 4) }, 4), /needs 8 bytes/],
    [file({ a: entry([2 ** 40, 2 ** 40], 0, 4) }, 4), /more than an array can index/],
    [file({ a: entry([0, 2 ** 40, 2 ** 40], 0, 0) }), /more than an array can index/],
    [file({ a: entry(Array(33).fill(1), 0, 4) }, 4), /has 33 dims, the limit is 32/],
    [file({ a: entry([1], 0, 4), b: entry([1], 0, 4) }, 4), /starts at 0, 4 expected/],
    [file({ a: entry([1], 4, 8) }, 8), /starts at 4, 0 expected/],
    [file({ a: entry([1], 0, 4) }, 8), /tensors end at byte 4 of 8/],
    [file({}, 1), /tensors end at byte 0 of 1/],
  ])("%#", (data, message) => {
    expect(() => decodeTensors(data, "here")).toThrow(message);
    expect(() => decodeTensors(data, "here")).toThrow(ArtifactCorrupt);
  });
});

test("empty tensors, metadata and an empty file are read", () => {
  const header = { b: entry([1], 0, 4), a: entry([0, 3], 0, 0), __metadata__: { format: "np" } };
  expect([...decodeTensors(file(header, 4), "here").keys()].sort()).toEqual(["a", "b"]);
  expect(decodeTensors(file({}), "here").size).toBe(0);
});

test("aligned tensors are views, others are copies with the same values", () => {
  const data = encodeTensors(new Map([["w", floats(1, 2.5)]]));
  expect(decodeTensors(data, "here").get("w")?.data.buffer).toBe(data.buffer);
  const shifted = new Uint8Array(data.length + 1);
  shifted.set(data, 1);
  expect(decodeTensors(shifted.subarray(1), "here").get("w")?.data).toEqual(Float32Array.from([1, 2.5]));
});

test("equal tensors give equal bytes whatever their order", () => {
  const a = floats(1);
  const b: Tensor = { dtype: "int64", shape: [], data: BigInt64Array.from([7n]) };
  expect(
    encodeTensors(
      new Map([
        ["a", a],
        ["b", b],
      ]),
    ),
  ).toEqual(
    encodeTensors(
      new Map([
        ["b", b],
        ["a", a],
      ]),
    ),
  );
  expect(() => encodeTensors(new Map([["a", { ...a, shape: [2] }]]))).toThrow(/has 4 bytes of data/);
});

describe("what was ordered", () => {
  const spec: TensorSpec = { name: "w", shape: [2], dtype: "float32", role: "parameter", capacity: 0, probability: 0 };

  test("passes when it is exactly that", () => {
    expect(() => checkTensors(new Map([["w", floats(1, 2)]]), [spec], "here")).not.toThrow();
  });

  test.each<[string, Map<string, Tensor>, RegExp]>([
    ["a missing tensor", new Map(), /1 tensors missing \[w\]/],
    ["another name", new Map([["v", floats(1, 2)]]), /1 not ordered \[v\]/],
    ["another shape", new Map([["w", floats(1)]]), /float32 \[1\], the plan says float32 \[2\]/],
    ["another dtype", new Map([["w", { ...bool(1, 0) }]]), /bool \[2\]/],
    [
      "no numbers",
      new Map([["w", floats(Number.NaN, Number.POSITIVE_INFINITY)]]),
      /holds 2 values that are not finite/,
    ],
  ])("is refused with %s", (_, tensors, message) => {
    expect(() => checkTensors(tensors, [spec], "here")).toThrow(message);
    expect(() => checkTensors(tensors, [spec], "here")).toThrow(UpdateRejected);
  });

  test("has sizes with the batch taken as given", () => {
    const x: TensorSpec = {
      name: "x",
      shape: ["batch", 3],
      dtype: "int64",
      role: "input",
      capacity: 0,
      probability: 0,
    };
    expect([byteCount(x, 4), isCarried(x), isCarried(spec)]).toEqual([96, false, true]);
  });
});

describe("masks", () => {
  test("travel as bits, the first entry in the highest", () => {
    const packed = packMask("w", bool(1, 0, 0, 0, 0, 0, 0, 0, 1));
    expect(packed.get("w#mask_bits")?.data).toEqual(Uint8Array.from([0x80, 0x80]));
    expect(packed.get("w#mask_shape")?.data).toEqual(BigInt64Array.from([9n]));
    expect(unpackMask("w", packed, "here")).toEqual(bool(1, 0, 0, 0, 0, 0, 0, 0, 1));
  });

  test("travel as places where fewer than one in 32 is kept", () => {
    const mask: Tensor = { dtype: "bool", shape: [10, 10], data: new Uint8Array(100).fill(1, 41, 43) };
    const packed = packMask("w", mask);
    expect(packed.get("w#mask_places")?.data).toEqual(Int32Array.from([41, 42]));
    expect(unpackMask("w", packed, "here")).toEqual(mask);
  });

  const shape = (...sizes: bigint[]): Tensor => ({
    dtype: "int64",
    shape: [sizes.length],
    data: BigInt64Array.from(sizes),
  });
  const places = (...flat: number[]): Tensor => ({
    dtype: "int32",
    shape: [flat.length],
    data: Int32Array.from(flat),
  });
  test.each<[string, [string, Tensor][], RegExp]>([
    ["nothing", [], /no mask of 'w'/],
    ["no shape", [["w#mask_places", places(1)]], /no mask of 'w'/],
    [
      "both forms",
      [
        ["w#mask_places", places(1)],
        ["w#mask_bits", bool(1)],
        ["w#mask_shape", shape(8n)],
      ],
      /no mask/,
    ],
    [
      "a negative size",
      [
        ["w#mask_places", places(1)],
        ["w#mask_shape", shape(-1n)],
      ],
      /says shape \[-1\]/,
    ],
    [
      "a huge size",
      [
        ["w#mask_places", places(1)],
        ["w#mask_shape", shape(2n ** 31n)],
      ],
      /points outside/,
    ],
    [
      "places outside",
      [
        ["w#mask_places", places(8)],
        ["w#mask_shape", shape(8n)],
      ],
      /points outside its 8/,
    ],
    [
      "places that fall",
      [
        ["w#mask_places", places(3, 3)],
        ["w#mask_shape", shape(8n)],
      ],
      /rising order/,
    ],
    [
      "negative places",
      [
        ["w#mask_places", places(-1)],
        ["w#mask_shape", shape(8n)],
      ],
      /rising order/,
    ],
    [
      "too few bits",
      [
        ["w#mask_bits", { ...bool(1), dtype: "uint8" }],
        ["w#mask_shape", shape(9n)],
      ],
      /1 bytes for 9/,
    ],
  ])("with %s are corrupt", (_, parts, message) => {
    expect(() => unpackMask("w", new Map(parts), "here")).toThrow(message);
    expect(() => unpackMask("w", new Map(parts), "here")).toThrow(ArtifactCorrupt);
  });

  test("keep values, which fill the tensor again", () => {
    const mask = bool(0, 1, 1, 0);
    const kept = keptValues(floats(1, 2, 3, 4), mask);
    expect(kept).toEqual(floats(2, 3));
    expect(expand(kept, mask, "here")).toEqual(floats(0, 2, 3, 0));
    expect(
      unpacked(
        new Map([
          ["w#kept", kept],
          ["b", floats(9)],
        ]),
        new Map([["w", mask]]),
        "here",
      ),
    ).toEqual(
      new Map([
        ["w", floats(0, 2, 3, 0)],
        ["b", floats(9)],
      ]),
    );
    expect(() => expand(floats(1), mask, "here")).toThrow(/1 values for 2 kept entries/);
    expect(() => unpacked(new Map([["v#kept", kept]]), new Map([["w", mask]]), "here")).toThrow(/'v', which has no/);
  });
});
