import { decode, encode } from "@msgpack/msgpack";
import { expect, test } from "vitest";
import { Float, MsgpackReader } from "../../src/contracts/msgpackReader";
import { MsgpackWriter } from "../../src/contracts/msgpackWriter";

function written(write: (writer: MsgpackWriter) => void): Uint8Array {
  const writer = new MsgpackWriter();
  write(writer);
  return writer.finish();
}

/** Of long ones `toEqual` takes seconds. */
function areSame(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

const EDGES = [0, 127, 128, 255, 256, 65_535, 65_536, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER];
const INTEGERS = [...EDGES, ...EDGES.map((n) => -n - 1), -32, -33, -128, -129, -32_768, -32_769, -(2 ** 31)].filter(
  Number.isSafeInteger,
);

test.each(INTEGERS)("the whole number %d has its shortest form", (value) => {
  const data = written((writer) => writer.integer(value));
  expect(data).toEqual(encode(value));
  expect(new MsgpackReader(data).value()).toBe(value);
});

test.each([2n ** 53n, 2n ** 64n - 1n, -(2n ** 63n), 2n ** 63n])("%d keeps all its bits", (value) => {
  const data = written((writer) => writer.integer(value));
  expect(decode(data, { useBigInt64: true })).toBe(value);
  expect(new MsgpackReader(data).value()).toBe(value);
});

test.each([0, 3, -1, 0.1, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 60])("the float %d stays one", (value) => {
  const data = written((writer) => writer.float(value));
  expect(data).toHaveLength(9);
  expect(new MsgpackReader(data).value()).toEqual(new Float(value));
});

test.each([0, 1, 31, 32, 255, 256, 65_535, 65_536, 100_000])("texts, bytes and lists of %d entries", (size) => {
  const text = "é".repeat(size / 2) + "x".repeat(size % 2);
  const binary = new Uint8Array(size).fill(7);
  const list = Array<number>(size).fill(1);
  for (const [value, data] of [
    [text, written((writer) => writer.text(text))],
    [binary, written((writer) => writer.binary(binary))],
  ] as const) {
    expect(areSame(data, encode(value))).toBe(true);
    expect(areSame(encode(new MsgpackReader(data).value()), data)).toBe(true);
  }
  const listed = written((writer) => {
    writer.list(size);
    for (const entry of list) writer.integer(entry);
  });
  expect(areSame(listed, encode(list))).toBe(true);
  expect(areSame(encode(new MsgpackReader(listed).value()), listed)).toBe(true);
});

test.each([0, 15, 16, 70_000])("maps of %d entries", (size) => {
  const value = Object.fromEntries(Array.from({ length: size }, (_, i) => [`k${i}`, i]));
  const data = written((writer) => {
    writer.map(size);
    for (const [key, entry] of Object.entries(value)) {
      writer.text(key);
      writer.integer(entry);
    }
  });
  expect(areSame(data, encode(value))).toBe(true);
  expect(areSame(encode(new MsgpackReader(data).value()), data)).toBe(true);
});

test("a byte string is a view, and a float of 32 bits is read", () => {
  const data = encode([new Uint8Array([1, 2]), 1.5], { forceFloat32: true });
  const [binary, float] = new MsgpackReader(data).value() as [Uint8Array, Float];
  expect([binary.buffer, float.value]).toEqual([data.buffer, 1.5]);
});
