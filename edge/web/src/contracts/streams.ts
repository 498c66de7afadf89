/**
 * Randomness that two agents in two languages draw alike: keyed streams over SplitMix64, and what is drawn from them.
 * Specified with golden vectors in docs/wire-protocol.md.
 * Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
 */

import { sha256 } from "@noble/hashes/sha2";
import { toFloat16 } from "./float16";
import { concreteShape, emptyData, type Tensor, type TensorSpec } from "./tensors";

/** Above it, z mod n in two 32-bit halves would leave the exact range of a number. */
const MOST_SHUFFLED = 2 ** 26;

/** 64-bit seed of the stream for (seed, purpose, round, device): 0 and empty where those do not apply. */
export function streamSeed(seed: bigint | number, purpose: string, round = 0, device = ""): bigint {
  const digest = sha256(new TextEncoder().encode(`${seed}\n${purpose}\n${round}\n${device}`));
  return new DataView(digest.buffer, digest.byteOffset).getBigUint64(0);
}

/**
 * The first `count` outputs of SplitMix64 started at `seed`: [high 32 bits, low 32 bits] of each, one after the other.
 * In halves of 32 bits: measured about 50 times as fast as bigint.
 */
export function splitmix64Halves(seed: bigint, count: number): Uint32Array {
  const draws = new Uint32Array(2 * count);
  let stateHigh = Number((seed >> 32n) & 0xffffffffn) >>> 0;
  let stateLow = Number(seed & 0xffffffffn) >>> 0;
  for (let i = 0; i < count; i++) {
    // state += 0x9E3779B97F4A7C15
    const sum = stateLow + 0x7f4a7c15;
    stateLow = sum >>> 0;
    stateHigh = (stateHigh + 0x9e3779b9 + (sum > 0xffffffff ? 1 : 0)) >>> 0;
    let high = stateHigh;
    let low = stateLow;
    // z = (z xor z >> 30) * 0xBF58476D1CE4E5B9
    low ^= (low >>> 30) | (high << 2);
    high ^= high >>> 30;
    high = (Math.imul(high, 0x1ce4e5b9) + Math.imul(low, 0xbf58476d) + productHigh(low >>> 0, 0x1ce4e5b9)) | 0;
    low = Math.imul(low, 0x1ce4e5b9);
    // z = (z xor z >> 27) * 0x94D049BB133111EB
    low ^= (low >>> 27) | (high << 5);
    high ^= high >>> 27;
    high = (Math.imul(high, 0x133111eb) + Math.imul(low, 0x94d049bb) + productHigh(low >>> 0, 0x133111eb)) | 0;
    low = Math.imul(low, 0x133111eb);
    // z xor z >> 31
    draws[2 * i] = high ^ (high >>> 31);
    draws[2 * i + 1] = low ^ ((low >>> 31) | (high << 1));
  }
  return draws;
}

/** The first `count` outputs of SplitMix64 started at `seed`. */
export function splitmix64(seed: bigint, count: number): BigUint64Array {
  const halves = splitmix64Halves(seed, count);
  return BigUint64Array.from(
    { length: count },
    (_, i) => (BigInt(halves[2 * i] as number) << 32n) | BigInt(halves[2 * i + 1] as number),
  );
}

/** `count` doubles in [0, 1): the top 53 bits of each output divided by 2^53. */
export function uniform(seed: bigint, count: number): Float64Array {
  const halves = splitmix64Halves(seed, count);
  const values = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const top = (halves[2 * i] as number) * 2 ** 21 + ((halves[2 * i + 1] as number) >>> 11);
    values[i] = top * 2 ** -53;
  }
  return values;
}

/** A Fisher-Yates shuffle of 0..count-1: for i = count-1 down to 1 the next output z exchanges i and z mod (i + 1). */
export function permutation(seed: bigint, count: number): Int32Array {
  if (count > MOST_SHUFFLED) throw new RangeError(`${count} examples, at most ${MOST_SHUFFLED} can be shuffled here`);
  const order = Int32Array.from({ length: count }, (_, i) => i);
  if (count < 2) return order;
  const draws = splitmix64Halves(seed, count - 1);
  for (let i = count - 1, at = 0; i > 0; i--, at += 2) {
    const size = i + 1;
    const high = (draws[at] as number) % size;
    const j = (high * (2 ** 32 % size) + ((draws[at + 1] as number) % size)) % size;
    const kept = order[i] as number;
    order[i] = order[j] as number;
    order[j] = kept;
  }
  return order;
}

/**
 * What `spec` of role `draw` is in a step, from the stream of (seed, "draw", step, name). Each of its outputs gives two
 * lanes of 32 bits, the low one first; the top 24 bits of a lane are k. A float32 draw is k / 2^24, a bool one
 * k < floor(2^24 probability + 0.5).
 * @param seed the order's `data_seed`
 * @param step number of the step within the assignment, from 0
 * @param batch examples of the whole batch, which micro-batches share out
 */
export function drawnValue(spec: TensorSpec, seed: bigint | number, step: number, batch: number): Tensor {
  return drawn(spec, streamSeed(seed, "draw", step, spec.name), batch);
}

function drawn(spec: TensorSpec, seed: bigint, batch: number): Tensor {
  const shape = concreteShape(spec, batch);
  const count = shape.reduce((product, size) => product * size, 1);
  const data = emptyData(spec.dtype, count);
  const halves = splitmix64Halves(seed, Math.ceil(count / 2));
  const below = Math.floor(spec.probability * 2 ** 24 + 0.5);
  for (let i = 0; i < count; i++) {
    // The high half comes first in `halves`, the low one in a draw.
    const top = (halves[i ^ 1] as number) >>> 8;
    data[i] = spec.dtype === "bool" ? Number(top < below) : top * 2 ** -24;
  }
  return { dtype: spec.dtype, shape, data };
}

/**
 * The value tensor `spec` takes in an artifact's self-test, formula `splitmix64-uniform/2`; `/1` without `bias` and `gain`.
 * @param batch size of the batch dimension
 * @param high vocabulary (integer inputs) or number of classes (targets), at least 2
 */
export function selfTestValue(
  spec: TensorSpec,
  seed: bigint | number,
  batch: number,
  high = 2,
  { bias, gain }: { bias: number; gain: number } = { bias: 0, gain: 1 },
): Tensor {
  const shape = concreteShape(spec, batch);
  const count = shape.reduce((product, size) => product * size, 1);
  const data = emptyData(spec.dtype, count);
  const isFloat = spec.dtype === "float32" || spec.dtype === "float16";
  if (spec.role === "slot" || spec.role === "accumulator" || (spec.role === "buffer" && !isFloat)) {
    return { dtype: spec.dtype, shape, data };
  }
  if (spec.role === "draw") return drawn(spec, streamSeed(seed, "self-test", 0, spec.name), batch);
  const put = setter(spec, data);
  if (spec.role === "label_mask" || spec.role === "grad_mask") {
    const kept = spec.role === "grad_mask" && spec.capacity > 0 ? Math.min(spec.capacity, count) : count;
    for (let i = 0; i < count; i++) {
      put(i, Math.floor(((i + 1) * kept) / count) > Math.floor((i * kept) / count) ? 1 : 0);
    }
    return { dtype: spec.dtype, shape, data };
  }
  const u = uniform(streamSeed(seed, "self-test", 0, spec.name), count);
  const formula = selfTestFormula(spec, shape, isFloat, high, bias, gain);
  for (let i = 0; i < count; i++) put(i, formula(u[i] as number));
  return { dtype: spec.dtype, shape, data };
}

function selfTestFormula(
  spec: TensorSpec,
  shape: readonly number[],
  isFloat: boolean,
  high: number,
  bias: number,
  gain: number,
): (u: number) => number {
  const isWeight = spec.role === "parameter" || spec.role === "frozen";
  if (spec.role === "input" || spec.role === "target") {
    return isFloat ? (u) => Math.sqrt(3) * (2 * u - 1) : (u) => Math.floor(u * high);
  }
  if (spec.role === "buffer" && spec.name.endsWith("running_var")) return (u) => 0.5 + u;
  if (isWeight && shape.length >= 2) {
    const root = Math.sqrt(
      Math.max(
        1,
        shape.slice(1).reduce((product, size) => product * size, 1),
      ),
    );
    return (u) => gain * ((2 * u - 1) / root);
  }
  if (isWeight && spec.name.endsWith("weight")) return (u) => 0.75 + 0.5 * u;
  if (isWeight) return (u) => bias + 0.1 * (2 * u - 1);
  return (u) => 0.1 * (2 * u - 1);
}

function setter(spec: TensorSpec, data: Tensor["data"]): (index: number, value: number) => void {
  if (data instanceof BigInt64Array) {
    return (index, value) => {
      data[index] = BigInt(value);
    };
  }
  const isHalf = spec.dtype === "float16";
  return (index, value) => {
    data[index] = isHalf ? toFloat16(value) : value;
  };
}

/** The upper 32 bits of a product of two unsigned 32-bit numbers. */
function productHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const other = aLow * bHigh + (middle % 0x10000);
  return aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000);
}
