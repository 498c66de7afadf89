import { describe, expect, it } from "vitest";
import type { InputSpec } from "../../src/contracts/manifest";
import type { LocalData, Values } from "../../src/data/examples";
import { joined } from "../../src/data/joining";

const INPUT: InputSpec = {
  layout: "features",
  shape: [1],
  dtype: "float32",
  mean: [0],
  std: [1],
  scale: 1,
  augment: [],
  vocabulary: 0,
};

const part = (values: Values, labels: LocalData["y"]["values"] = Array(values.length).fill("a")): LocalData => ({
  where: "mine",
  x: { values, shape: [values.length, 1] },
  y: { values: labels, shape: [values.length] },
});

describe("sources joined", () => {
  // As numpy.concatenate promotes them; halves and 16-bit numbers are exact in float32.
  it.each([
    [Uint8Array.of(1), Uint8Array.of(2), Uint8Array],
    [Uint8Array.of(1), Float32Array.of(2.5), Float32Array],
    [Float32Array.of(0.5), Int32Array.of(16777217), Float64Array],
    [Float64Array.of(0.1), Float32Array.of(0.5), Float64Array],
    [Int32Array.of(-1), BigInt64Array.of(2n), BigInt64Array],
    [BigInt64Array.of(2n), Float32Array.of(0.5), Float64Array],
  ])("%#: keep their values", (first, second, Kind) => {
    const { x } = joined([part(first), part(second)], INPUT);
    expect(x.values).toBeInstanceOf(Kind);
    expect(Array.from(x.values, Number)).toEqual([Number(first[0]), Number(second[0])]);
    expect(x.shape).toEqual([2, 1]);
  });

  it("keep labels of any numeric kind, and refuse another shape of them", () => {
    const { y } = joined([part(Uint8Array.of(1), BigInt64Array.of(7n)), part(Uint8Array.of(1), [8])], INPUT);
    expect(y).toEqual({ values: [7, 8], shape: [2] });
    const wide = { ...part(Uint8Array.of(1)), y: { values: [1, 2], shape: [1, 2] } };
    expect(() => joined([part(Uint8Array.of(1), [1]), wide], INPUT)).toThrow(
      "labels have shape (2,), those of mine ()",
    );
  });
});
