import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { ArtifactManifest, InputSpec } from "../../src/contracts/manifest";
import type { LastBatch } from "../../src/contracts/plan";
import { augmented, BatchOrder, Examples } from "../../src/data/batches";
import type { LocalData, Values } from "../../src/data/examples";

interface Recorded {
  readonly dtype: string;
  readonly shape: number[];
  readonly base64: string;
}

interface Case {
  readonly name: string;
  readonly x: Recorded;
  readonly y: Recorded | { readonly names: string[]; readonly shape: number[] };
  readonly input: Partial<InputSpec> & Pick<InputSpec, "layout" | "shape">;
  readonly classes: string[];
  readonly target: { readonly dtype: string; readonly shape: number[] };
  readonly batch: number;
  readonly last_batch: LastBatch;
  readonly data_seed: string;
  readonly count: number;
  readonly batches: { readonly indices: number[]; readonly x: Recorded; readonly y: Recorded }[];
}

const CASES: Case[] = JSON.parse(readFileSync(new URL("batches.json", import.meta.url), "utf-8")).cases;
const KINDS = {
  uint8: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  float32: Float32Array,
  float64: Float64Array,
} as const;

function valuesOf(recorded: Recorded): Values {
  const bytes = Uint8Array.from(Buffer.from(recorded.base64, "base64"));
  return new KINDS[recorded.dtype as keyof typeof KINDS](bytes.buffer);
}

function manifestOf(
  input: Case["input"],
  { classes = ["a", "b", "c"], target = { dtype: "int64", shape: [] as number[] } } = {},
): ArtifactManifest {
  const tensors = [{ name: "y", shape: ["batch", ...target.shape], dtype: target.dtype, role: "target" }];
  const usual = { dtype: "float32", mean: [0], std: [1], scale: 1, augment: [], vocabulary: 0 };
  return { input: { ...usual, ...input }, classes, tensors } as unknown as ArtifactManifest;
}

function dataOf(found: Case): LocalData {
  const y = "names" in found.y ? { values: found.y.names, shape: found.y.shape } : null;
  return {
    where: "fixture",
    x: { values: valuesOf(found.x), shape: found.x.shape },
    y: y ?? { values: valuesOf(found.y as Recorded), shape: found.y.shape },
  };
}

describe("batches recorded from the Python agent", () => {
  it.each(CASES)("$name", (found) => {
    const examples = new Examples(dataOf(found), manifestOf(found.input, found));
    const order = new BatchOrder(examples.length, found.batch, found.last_batch, BigInt(found.data_seed));
    const made = [...order.batches(found.count)].map((indices, number) => ({
      indices,
      ...examples.batch(indices, order.augmentSeed(number)),
    }));
    expect(made.length).toBe(found.batches.length);
    made.forEach((batch, number) => {
      const recorded = found.batches[number] as Case["batches"][number];
      expect([...batch.indices]).toEqual(recorded.indices);
      expect(batch.xShape).toEqual(recorded.x.shape);
      expect(batch.yShape).toEqual(recorded.y.shape);
      // Bytes, not values: float32 arithmetic in the same order leaves nothing to tolerate.
      for (const key of ["x", "y"] as const) {
        expect(Buffer.from(batch[key].buffer).toString("base64")).toBe(recorded[key].base64);
      }
    });
  });
});

describe("batch order", () => {
  const page = readFileSync(new URL("../../../../docs/wire-protocol.md", import.meta.url), "utf-8");
  const vectors = JSON.parse(/```json vectors\n([\s\S]*?)```/.exec(page)?.[1] ?? "").batches as {
    examples: number;
    batch: number;
    last_batch: LastBatch;
    data_seed: string;
    batches: number[][];
  }[];

  it.each(vectors)("is that of the wire protocol: $last_batch of $examples", (vector) => {
    const order = new BatchOrder(vector.examples, vector.batch, vector.last_batch, BigInt(vector.data_seed));
    expect([...order.batches(vector.batches.length)].map((indices) => [...indices])).toEqual(vector.batches);
  });

  it("counts the batches of a schedule", () => {
    const order = new BatchOrder(5, 2, "keep", 1n);
    const turns = [{ program: "train", advance_batch: true }];
    expect(order.total({ epochs: 2, steps: 0, turns })).toBe(6);
    expect(order.total({ epochs: 0, steps: 7, turns })).toBe(7);
    expect(() => order.total({ epochs: 1, steps: 7, turns })).toThrow("1 epochs and 7 steps");
    expect(() => order.total({ epochs: 0, steps: 0, turns })).toThrow("0 epochs and 0 steps");
    expect(() => order.total({ epochs: 1, steps: 0, turns: [] })).toThrow("never advances");
  });

  it("refuses an augmentation it does not know", () => {
    expect(() => augmented(new Float32Array(4), [1, 1, 2, 2], ["flip", "mixup"], 1n)).toThrow("['mixup'] is unknown");
  });
});

describe("examples that do not fit", () => {
  const data = (values: Values, shape: number[], labels: LocalData["y"]["values"]): LocalData => ({
    where: "mine",
    x: { values, shape },
    y: { values: labels, shape: [labels.length] },
  });
  const two = Float32Array.of(1, 2);

  it.each([
    ["another shape", data(two, [1, 2], [0]), "examples have shape (2,), the artifact takes (3,)", {}],
    ["not finite", data(Float32Array.of(1, Number.NaN, 2), [1, 3], [0]), "x holds values that are not finite", {}],
    ["unknown class", data(new Float32Array(3), [1, 3], ["fox"]), "unknown classes ['fox'], the artifact knows", {}],
    [
      "label out of range",
      data(new Float32Array(3), [1, 3], [3]),
      "labels are int64 from 3 to 3, whole numbers 0..2",
      {},
    ],
    ["labels with fractions", data(new Float32Array(3), [1, 3], [0.5]), "labels are float64 from 0.5 to 0.5", {}],
    ["fewer labels", data(new Float32Array(6), [2, 3], [1]), "2 examples with 1 labels", {}],
    ["no examples", data(new Float32Array(0), [0, 3], []), "0 examples with 0 labels", {}],
    ["symbols", data(Uint8Array.of(1, 2, 9), [1, 3], [0]), "x must hold symbols 0..8; got uint8", { vocabulary: 9 }],
  ])("%s", (_, found, message, tokens) => {
    const input = { layout: "features", shape: [3], ...tokens } as Case["input"];
    const manifest = manifestOf("vocabulary" in tokens ? { ...input, dtype: "int64" } : input);
    expect(() => new Examples(found, manifest)).toThrow(message);
  });

  it("says which classes are here", () => {
    const examples = new Examples(
      data(new Float32Array(9), [3, 3], ["c", "a", "c"]),
      manifestOf({ layout: "features", shape: [3] }),
    );
    expect(examples.labels()).toEqual([0, 2]);
    expect([...examples.labelMask()]).toEqual([1, 0, 1]);
  });
});
