import { describe, expect, it } from "vitest";
import { median, memoryLines, stepLines } from "../../src/device/lines";
import type { Measurement } from "../../src/device/measurements";

const MB = 1_000_000;

function point(fields: Partial<Measurement>): Measurement {
  return {
    runtime: "onnxruntime_web",
    artifact: "a",
    threads: 1,
    predictedBytes: 0,
    grownBytes: 0,
    graphBytes: 0,
    gigamacs: 0,
    stepMs: 0,
    at: 100,
    ...fields,
  };
}

const memory = (...sizes: [number, number][]) =>
  memoryLines(sizes.map(([predicted, grown]) => point({ predictedBytes: predicted * MB, grownBytes: grown * MB })))
    .onnxruntime_web;

const times = (...sizes: [number, number][]) =>
  stepLines(sizes.map(([gigamacs, stepMs], i) => point({ artifact: String(i), gigamacs, stepMs }))).onnxruntime_web;

describe("the line of memory", () => {
  it("of one size counts what is beyond its prediction as constant", () => {
    expect(memory([2, 20])).toMatchObject({ scale: 1, offset_bytes: 18 * MB, floor_bytes: 0, missing_bytes: 0 });
    expect(memory([40, 30], [40, 20])).toMatchObject({ scale: 0.75, offset_bytes: 0, points: 1 });
  });

  it("of several takes the smallest as the floor and the largest multiple above it", () => {
    const line = memory([2, 20], [100, 150], [200, 200], [2, 24]);
    expect(line).toMatchObject({ scale: 1.5, offset_bytes: 0, floor_bytes: 24 * MB, missing_bytes: 0, points: 3 });
    expect(line?.measured_at).toBe(100);
  });

  it("knows nothing without a growth", () => {
    expect(memoryLines([point({ predictedBytes: 5 }), point({ grownBytes: 5 })])).toEqual({});
  });
});

describe("the line of time", () => {
  it("goes through two sizes of work, and their relative errors are small where three scatter", () => {
    const two = times([1, 60], [3, 160])?.[0];
    expect(two).toMatchObject({ threads: 1, points: 2 });
    expect(two?.constant_ms).toBeCloseTo(10, 9);
    expect(two?.gigamac_ms).toBeCloseTo(50, 9);
    const three = times([1, 60], [3, 165], [5, 255])?.[0];
    expect(three?.gigamac_ms).toBeGreaterThan(45);
    expect(three?.gigamac_ms).toBeLessThan(55);
    expect(three?.median_error).toBeLessThan(0.03);
  });

  it("of one size has no constant; neither part is negative", () => {
    expect(times([2, 100])?.[0]).toMatchObject({ constant_ms: 0, gigamac_ms: 50, median_error: 0 });
    expect(times([1, 10], [2, 40])?.[0]?.constant_ms).toBe(0);
    const slower = times([1, 40], [2, 10])?.[0];
    expect(slower?.gigamac_ms).toBe(0);
    expect(slower?.constant_ms).toBeGreaterThan(10);
  });

  it("has one for every number of threads, repeats as their median", () => {
    const lines = stepLines(
      [
        [2, 60],
        [1, 90],
        [1, 100],
        [1, 5000],
      ].map(([threads = 1, stepMs = 0]) => point({ threads, stepMs, gigamacs: 2 })),
    ).onnxruntime_web;
    expect(lines?.map(({ threads, gigamac_ms }) => [threads, gigamac_ms])).toEqual([
      [1, 50],
      [2, 30],
    ]);
  });

  it("the median of an even number lies between", () => {
    expect([median([]), median([3]), median([1, 9, 2]), median([4, 1, 2, 3])]).toEqual([0, 3, 2, 2.5]);
  });
});
