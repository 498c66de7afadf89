import { describe, expect, test } from "vitest";
import { fromFloat16, toFloat16 } from "../../src/contracts/float16";
import { assignmentId } from "../../src/contracts/plan";
import { drawnValue, permutation, selfTestValue, splitmix64, streamSeed, uniform } from "../../src/contracts/streams";
import type { TensorSpec } from "../../src/contracts/tensors";
import { vectors } from "./goldenFiles";

const VECTORS = vectors();
const spec = (given: Partial<TensorSpec>): TensorSpec => ({
  name: "w",
  shape: [4],
  dtype: "float32",
  role: "parameter",
  capacity: 0,
  probability: 0,
  ...given,
});

test("stream seeds are those of the page", () => {
  for (const [seed, purpose, round, device, expected] of VECTORS.stream_seed) {
    expect(streamSeed(seed, purpose, round, device)).toBe(BigInt(expected));
  }
});

test("SplitMix64 draws what the page says", () => {
  for (const [seed, expected] of VECTORS.splitmix64) {
    expect(Array.from(splitmix64(BigInt(seed), expected.length), String)).toEqual(expected);
  }
});

test("SplitMix64 in two halves is SplitMix64 in 64 bits", () => {
  const mask = (1n << 64n) - 1n;
  for (const seed of [0n, 1n, 0xffffffffn, 0x8000000080000000n, mask, 0x123456789abcdef0n]) {
    const drawn = splitmix64(seed, 1000);
    for (let i = 1n; i <= 1000n; i++) {
      let z = (seed + i * 0x9e3779b97f4a7c15n) & mask;
      z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
      z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
      expect(drawn[Number(i) - 1]).toBe(z ^ (z >> 31n));
    }
  }
});

test("uniform numbers are those of the page", () => {
  for (const [seed, expected] of VECTORS.uniform) {
    expect(Array.from(uniform(BigInt(seed), expected.length))).toEqual(expected);
  }
});

test("permutations are those of the page", () => {
  for (const [seed, count, expected] of VECTORS.permutation) {
    expect(Array.from(permutation(BigInt(seed), count))).toEqual(expected);
  }
  expect(permutation(1n, 0)).toHaveLength(0);
});

test("a permutation of many exchanges what 64-bit arithmetic says, and is quick", () => {
  const count = 60_000;
  const times = [1, 2, 3, 4, 5].map(() => {
    const started = performance.now();
    permutation(42n, count);
    return performance.now() - started;
  });
  // The best of five, because the machine may be busy.
  expect(Math.min(...times)).toBeLessThan(50);
  const order = permutation(42n, count);
  const expected = Array.from({ length: count }, (_, i) => i);
  const draws = splitmix64(42n, count - 1);
  for (let i = count - 1; i > 0; i--) {
    const j = Number((draws[count - 1 - i] as bigint) % BigInt(i + 1));
    [expected[i], expected[j]] = [expected[j] as number, expected[i] as number];
  }
  expect(Array.from(order)).toEqual(expected);
});

test("assignment ids are those of the page", () => {
  for (const [federation, round, device, attempt, run, expected] of VECTORS.assignment_id) {
    expect(assignmentId(federation, round, device, attempt, run)).toBe(expected);
  }
});

test.each(VECTORS.draws)(
  "draw $name is that of the page",
  ({ name, shape, dtype, probability, seed, step, batch, value }) => {
    const given = spec({ name, shape, dtype: dtype as TensorSpec["dtype"], role: "draw", probability });
    const found = drawnValue(given, BigInt(seed), step, batch);
    expect(found.dtype).toBe(dtype);
    expect(found.shape).toEqual(shape.map((size) => (size === "batch" ? batch : size)));
    expect(Array.from(found.data, Number)).toEqual(value);
  },
);

describe("self-test values", () => {
  const { seed, batch, high, tensors } = VECTORS.self_test;
  test.each(tensors)("$name is that of the page", ({ name, shape, dtype, role, probability, value, bias, gain }) => {
    const kinds = { dtype: dtype as TensorSpec["dtype"], role: role as TensorSpec["role"] };
    const given = spec({ name, shape, ...kinds, probability: probability ?? 0 });
    const found = selfTestValue(given, seed, batch, high, { bias: bias ?? 0, gain: gain ?? 1 });
    expect(found.dtype).toBe(dtype);
    expect(found.shape).toEqual(shape.map((size) => (size === "batch" ? batch : size)));
    expect(Array.from(found.data, Number)).toEqual(value);
  });

  test("a mask keeps as many as its capacity, spread evenly", () => {
    const mask = spec({ name: "w#mask", shape: [2, 4], dtype: "bool", role: "grad_mask", capacity: 3 });
    // floor((i + 1) 3 / 8) rises at i = 2, 5 and 7.
    expect(Array.from(selfTestValue(mask, 5, 2).data, Number)).toEqual([0, 0, 1, 0, 0, 1, 0, 1]);
    expect(Array.from(selfTestValue({ ...mask, capacity: 0 }, 5, 2).data, Number)).toEqual(Array(8).fill(1));
  });

  test("half precision is rounded to even", () => {
    const half = selfTestValue(spec({ name: "fc1.weight", shape: [2, 3], dtype: "float16" }), 5, 2);
    const full = selfTestValue(spec({ name: "fc1.weight", shape: [2, 3] }), 5, 2);
    for (const [index, bits] of half.data.entries()) {
      expect(fromFloat16(bits as number)).toBeCloseTo(full.data[index] as number, 3);
    }
    const cases: [number, number][] = [
      [1 + 2 ** -11, 0x3c00],
      [1 + 3 * 2 ** -11, 0x3c02],
      [65_504, 0x7bff],
      [65_520, 0x7c00],
      [2 ** -24, 1],
      [2 ** -14, 0x0400],
      [2 ** -14 - 2 ** -26, 0x0400],
      [-2, 0xc000],
      [2 - 2 ** -12, 0x4000],
    ];
    for (const [value, bits] of cases) expect(toFloat16(value)).toBe(bits);
    for (let bits = 0; bits < 0x7c00; bits++) expect(toFloat16(fromFloat16(bits))).toBe(bits);
  });
});
