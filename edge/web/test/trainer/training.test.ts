import { describe, expect, test } from "vitest";
import { packMask } from "../../src/contracts/packing";
import { encodeTensors } from "../../src/contracts/tensorFile";
import type { Tensor } from "../../src/contracts/tensors";
import { isOutOfMemory } from "../../src/trainer/outOfMemory";
import { PauseGate } from "../../src/trainer/pauseGate";
import { percentile, stepsOf } from "../../src/trainer/training";
import { Weights } from "../../src/trainer/weights";

const float = (values: number[]): Tensor => ({
  dtype: "float32",
  shape: [values.length],
  data: Float32Array.from(values),
});

describe("steps of a schedule", () => {
  test.each([
    [3, [true], 3],
    [2, [false, true], 4],
    [2, [true, false], 3],
    [3, [true, true, false], 4],
    [4, [true, true, false], 5],
    [5, [false, true, true], 8],
  ])("%i batches over %j are %i", (batches, advances, steps) => {
    expect(stepsOf(batches, advances)).toBe(steps);
  });
});

test("percentiles are of the nearest rank", () => {
  const values = [5, 1, 4, 2, 3];
  expect([0.5, 0.95, 0.2, 0].map((share) => percentile(values, share))).toEqual([3, 5, 1, 1]);
  expect(percentile([], 0.5)).toBe(0);
});

describe("weights", () => {
  const mask: Tensor = { dtype: "bool", shape: [2, 2], data: Uint8Array.of(1, 0, 0, 1) };
  const weights = encodeTensors(
    new Map([
      ["a", float([1, 2])],
      ["w#kept", float([3, 4])],
    ]),
  );
  const constants = encodeTensors(packMask("w", mask));

  test("packed ones are whole", () => {
    const source = new Weights(weights, constants, "test");
    expect(["a", "w", "w#mask", "b", "a#mask"].map((name) => source.has(name))).toEqual([
      true,
      true,
      true,
      false,
      false,
    ]);
    expect([...(source.get("w")?.data ?? [])]).toEqual([3, 0, 0, 4]);
    expect(source.get("w#mask")).toEqual(mask);
    expect(source.get("b")).toBeUndefined();
  });

  test("kept values without their mask are refused", () => {
    const source = new Weights(weights, null, "round 3");
    expect(() => source.get("w")).toThrow("round 3: no mask of 'w'");
  });
});

test("a closed gate holds until it is opened, and messages are heard at every pass", async () => {
  const gate = new PauseGate();
  await gate.pass();
  let isHeard = false;
  setTimeout(() => gate.open(), 20);
  const channel = new MessageChannel();
  channel.port1.onmessage = () => {
    isHeard = true;
  };
  channel.port2.postMessage(null);
  gate.close();
  const before = performance.now();
  await gate.pass();
  channel.port1.close();
  expect(performance.now() - before).toBeGreaterThan(10);
  expect(isHeard).toBe(true);
});

test.each([
  [new RangeError("WebAssembly.Memory.grow(): Out of memory"), true],
  [new Error("failed to call OrtRun(). std::bad_alloc"), true],
  [new RangeError("Array buffer allocation failed"), true],
  [new Error("Aborted(OOM)"), true],
  [new Error("invalid shape"), false],
  [7, false],
])("%s is about memory: %s", (error, isMemory) => {
  expect(isOutOfMemory(error)).toBe(isMemory);
});
