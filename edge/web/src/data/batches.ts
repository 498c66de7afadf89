/**
 * Local examples as an artifact's batches: layout, labels, normalisation, seeded augmentation, and their order.
 *
 * Everything is a function of (examples, manifest, order): a restarted assignment sees the same batches. Specified with
 * golden vectors in docs/wire-protocol.md; arithmetic is float32 in the order that page gives, so that a batch has the
 * very bytes it has on the Python agent.
 */

import { DataError, DeviceRefused } from "../contracts/errors";
import type { ArtifactManifest, InputSpec } from "../contracts/manifest";
import type { LastBatch, Schedule } from "../contracts/plan";
import { permutation, streamSeed, uniform } from "../contracts/streams";
import { type LocalData, listText, sizeOf, type Values } from "./examples";
import { asDtype, type Fed, fitInput, fitLabels } from "./fitting";

const CROP = /^crop[1-9][0-9]?$/;

/** Inputs [B, ...input.shape] and targets [B, ...], row-major. */
export interface Batch {
  readonly x: Fed;
  readonly y: Fed;
  readonly xShape: readonly number[];
  readonly yShape: readonly number[];
}

/** Local data checked against a manifest; a DataError where they do not fit. */
export class Examples {
  readonly length: number;
  readonly #where: string;
  readonly #input: InputSpec;
  readonly #classes: number;
  readonly #x: Values;
  readonly #y: Fed;
  readonly #yShape: readonly number[];

  constructor(data: LocalData, manifest: ArtifactManifest) {
    const found = [data.x.shape[0] ?? 0, data.y.shape[0] ?? 0];
    if (found[0] !== found[1] || found[0] === 0) {
      throw new DataError(`${data.where}: ${found[0]} examples with ${found[1]} labels; give as many, at least one`);
    }
    this.length = found[0] as number;
    this.#where = data.where;
    this.#input = manifest.input;
    this.#classes = manifest.classes.length;
    this.#x = fitInput(data, manifest.input);
    const labels = fitLabels(data, manifest);
    this.#y = labels.values;
    this.#yShape = labels.shape;
  }

  /** The examples at `indices`, augmented and normalised. */
  batch(indices: Int32Array, augmentSeed: bigint): Batch {
    const spec = this.#input;
    const xShape = [indices.length, ...spec.shape];
    const yShape = [indices.length, ...this.#yShape];
    const y = rows(this.#y, indices, sizeOf(this.#yShape));
    const raw = rows(this.#x, indices, sizeOf(spec.shape));
    if (spec.dtype !== "float32") return { x: asDtype(raw, spec.dtype, this.#where), y, xShape, yShape };
    let x = asDtype(raw, "float32", this.#where) as Float32Array;
    if (spec.augment.length > 0) x = augmented(x, xShape, spec.augment, augmentSeed);
    this.#normalise(x);
    return { x, y, xShape, yShape };
  }

  /** 1 for classes with a local example: float32 [classes]. */
  labelMask(): Float32Array {
    const mask = new Float32Array(this.#classes);
    for (const label of this.labels()) mask[label] = 1;
    return mask;
  }

  /** Classes with a local example, rising. */
  labels(): number[] {
    const found = new Set<number>();
    for (const label of this.#y) found.add(Math.trunc(Number(label)));
    return [...found].sort((a, b) => a - b);
  }

  /** `(x * scale - mean) / std` in place. A Float32Array rounds what is stored, which makes every operation float32. */
  #normalise(x: Float32Array): void {
    const { scale, mean, std, shape, layout } = this.#input;
    if (scale !== 1) {
      const factor = Math.fround(scale);
      for (let i = 0; i < x.length; i += 1) x[i] = (x[i] as number) * factor;
    }
    // Values of one channel follow each other; the features of an example are channels of one value.
    const channels = layout === "chw" ? (shape[0] ?? 1) : (shape.at(-1) ?? 1);
    const run = layout === "chw" ? sizeOf(shape.slice(1)) : 1;
    if (mean.some((value) => value !== 0)) {
      const means = this.#perChannel(mean, channels, "means");
      for (let i = 0; i < x.length; i += 1) {
        x[i] = (x[i] as number) - (means[Math.floor(i / run) % channels] as number);
      }
    }
    if (std.some((value) => value !== 1)) {
      const deviations = this.#perChannel(std, channels, "deviations");
      for (let i = 0; i < x.length; i += 1) {
        x[i] = (x[i] as number) / (deviations[Math.floor(i / run) % channels] as number);
      }
    }
  }

  #perChannel(values: readonly number[], channels: number, what: string): Float32Array {
    if (values.length === channels) return Float32Array.from(values);
    if (values.length === 1) return new Float32Array(channels).fill(values[0] as number);
    throw new DataError(
      `${this.#where}: the artifact has ${values.length} ${what} for ${channels} channels; order another one`,
    );
  }
}

/**
 * Which examples go into which batch. `lastBatch` says what becomes of an epoch's incomplete batch: `drop`, `keep`
 * (smaller), or `wrap` (filled from the start of the same epoch). Fewer examples than a batch: `drop` wraps.
 */
export class BatchOrder {
  constructor(
    readonly examples: number,
    readonly batch: number,
    readonly lastBatch: LastBatch,
    readonly dataSeed: bigint,
  ) {}

  /** Batches in one epoch, at least 1. */
  get perEpoch(): number {
    if (this.lastBatch === "drop") return Math.max(1, Math.floor(this.examples / this.batch));
    return Math.ceil(this.examples / this.batch);
  }

  /** Batches of the whole schedule; DeviceRefused for one that never ends or never starts. */
  total(schedule: Schedule): number {
    if (!schedule.turns.some((turn) => turn.advance_batch)) {
      throw new DeviceRefused("the order's schedule never advances to another batch; order at least one such turn");
    }
    if (schedule.epochs > 0 === schedule.steps > 0) {
      throw new DeviceRefused(
        `the order says ${schedule.epochs} epochs and ${schedule.steps} steps; order one of both`,
      );
    }
    return schedule.steps > 0 ? schedule.steps : schedule.epochs * this.perEpoch;
  }

  /** Indices of the first `count` batches, epoch after epoch, each of `batch` examples (fewer with `keep`). */
  *batches(count: number): Generator<Int32Array> {
    let order = new Int32Array();
    for (let number = 0; number < count; number += 1) {
      const place = number % this.perEpoch;
      if (place === 0) {
        const epoch = Math.floor(number / this.perEpoch);
        order = Int32Array.from(permutation(streamSeed(this.dataSeed, "epoch", epoch), this.examples));
      }
      const indices = order.slice(place * this.batch, (place + 1) * this.batch);
      yield indices.length < this.batch && this.lastBatch !== "keep" ? this.#filled(indices, order) : indices;
    }
  }

  /** Seed of the augmentation of batch `number` of the assignment, counted from 0. */
  augmentSeed(number: number): bigint {
    return streamSeed(this.dataSeed, "augment", number);
  }

  #filled(indices: Int32Array, order: Int32Array): Int32Array {
    const source = [...indices, ...order];
    return Int32Array.from({ length: this.batch }, (_, i) => source[i % source.length] as number);
  }
}

/**
 * Raw images [B, C, H, W] after the named augmentations, one draw per example and purpose.
 *
 * With u = uniform(seed, 3B): `flip` mirrors example i when u[i] < 0.5; `crop4` pads p = 4 zeros on every side and cuts
 * the window at row floor((2p + 1) u[B + i]), column floor((2p + 1) u[2B + i]); `crop2` two, and so on.
 */
export function augmented(
  x: Float32Array,
  shape: readonly number[],
  names: readonly string[],
  seed: bigint,
): Float32Array {
  const padding = cropPadding(names);
  if (shape.length !== 4) {
    throw new DeviceRefused(`augmentation takes images [B, C, H, W], not ${shape.length} dimensions; order without it`);
  }
  const [count, channels, height, width] = shape as [number, number, number, number];
  const u = uniform(seed, 3 * count);
  const result = new Float32Array(x.length);
  for (let i = 0; i < count; i += 1) {
    const isMirrored = names.includes("flip") && (u[i] as number) < 0.5;
    const offset = (purpose: number) => Math.floor((u[purpose * count + i] as number) * (2 * padding + 1)) - padding;
    const down = offset(1);
    const right = offset(2);
    for (let plane = i * channels; plane < (i + 1) * channels; plane += 1) {
      for (let row = 0; row < height; row += 1) {
        const from = row + down;
        if (from < 0 || from >= height) continue;
        for (let column = 0; column < width; column += 1) {
          const at = column + right;
          if (at < 0 || at >= width) continue;
          const source = isMirrored ? width - 1 - at : at;
          result[(plane * height + row) * width + column] = x[(plane * height + from) * width + source] as number;
        }
      }
    }
  }
  return result;
}

/** Pixels that are padded on every side before a window is cut; 0 where none is. */
function cropPadding(names: readonly string[]): number {
  const given = [...new Set(names)].sort();
  const unknown = given.filter((name) => name !== "flip" && !CROP.test(name));
  if (unknown.length > 0) {
    throw new DeviceRefused(`augmentation ${listText(unknown)} is unknown, known are flip and crop1 to crop99`);
  }
  const crops = given.filter((name) => CROP.test(name));
  if (crops.length > 1) throw new DeviceRefused(`augmentation ${listText(given)} has ${crops.length} crops; name one`);
  return crops.length === 1 ? Number((crops[0] as string).slice("crop".length)) : 0;
}

function rows<T extends Values | Fed>(values: T, indices: Int32Array, size: number): T {
  const Kind = values.constructor as new (length: number) => T;
  const taken = new Kind(indices.length * size);
  indices.forEach((index, row) => {
    taken.set(values.subarray(index * size, (index + 1) * size) as never, row * size);
  });
  return taken;
}
