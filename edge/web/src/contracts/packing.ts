/**
 * How masked tensors travel: the kept values alone, and the mask apart from them, once for as long as it holds.
 *
 * `<name>#kept` [kept entries, row-major] stands for tensor `<name>` whose other entries are 0 under its mask. A mask
 * travels as `<name>#mask_bits` (uint8, most significant bit first) or `<name>#mask_places` (int32, flat indices,
 * rising), with `<name>#mask_shape` (int64). Masks here are Tensors of dtype bool.
 */

import { ArtifactCorrupt } from "./errors";
import { emptyData, type Tensor } from "./tensors";

export const KEPT = "#kept";
export const MASK = "#mask";
export const BITS = "#mask_bits";
export const PLACES = "#mask_places";
export const SHAPE = "#mask_shape";

const MOST = 2 ** 31;
/** No tensor of a browser has more, and a short list of places could promise them. */
const MOST_ENTRIES = 2 ** 28;
const MAX_DIMS = 8;

/** The boolean mask of tensor `name`; ArtifactCorrupt when there is none, or its parts do not fit each other. */
export function unpackMask(name: string, tensors: ReadonlyMap<string, Tensor>, where: string): Tensor {
  const bits = tensors.get(name + BITS);
  const places = tensors.get(name + PLACES);
  const sizes = tensors.get(name + SHAPE);
  if (sizes === undefined || (bits === undefined) === (places === undefined)) {
    throw new ArtifactCorrupt(`${where}: no mask of '${name}' among ${tensors.size} tensors; send it again`);
  }
  const shape = Array.from(sizes.data, Number);
  const isCounts = sizes.dtype === "int64" && shape.every((size) => size >= 0 && size <= MOST);
  if (!isCounts || shape.length > MAX_DIMS) {
    throw new ArtifactCorrupt(
      `${where}: the mask of '${name}' says shape [${shape.slice(0, MAX_DIMS)}]; send it again`,
    );
  }
  const count = countOf(shape);
  const data = bits !== undefined ? fromBits(name, bits, count, where) : fromPlaces(name, places, count, where);
  return { dtype: "bool", shape, data };
}

/** The tensors that carry the mask of `name`: bits, or places where fewer than one entry in 32 is kept. */
export function packMask(name: string, mask: Tensor): Map<string, Tensor> {
  const entries = mask.data as Uint8Array;
  const count = entries.length;
  const kept = keptCount(mask);
  const shape: Tensor = {
    dtype: "int64",
    shape: [mask.shape.length],
    data: BigInt64Array.from(mask.shape, (size) => BigInt(size)),
  };
  const bytes = Math.ceil(count / 8);
  if (kept * 4 < bytes && count < MOST) {
    const places = new Int32Array(kept);
    let at = 0;
    for (let i = 0; i < count; i++) if (entries[i]) places[at++] = i;
    return new Map([
      [name + PLACES, { dtype: "int32", shape: [kept], data: places }],
      [name + SHAPE, shape],
    ]);
  }
  const bits = new Uint8Array(bytes);
  for (let i = 0; i < count; i++) if (entries[i]) bits[i >> 3] = (bits[i >> 3] as number) | (0x80 >> (i & 7));
  return new Map([
    [name + BITS, { dtype: "uint8", shape: [bytes], data: bits }],
    [name + SHAPE, shape],
  ]);
}

/** The entries of `value` under `mask`, row-major. */
export function keptValues(value: Tensor, mask: Tensor): Tensor {
  const kept = emptyData(value.dtype, keptCount(mask));
  let at = 0;
  for (let i = 0; i < mask.data.length; i++) if (mask.data[i]) kept[at++] = value.data[i] as number;
  return { dtype: value.dtype, shape: [kept.length], data: kept };
}

/** The whole tensor of `kept` under `mask`, 0 elsewhere; ArtifactCorrupt on another number of values than it keeps. */
export function expand(kept: Tensor, mask: Tensor, where: string): Tensor {
  const count = keptCount(mask);
  if (kept.shape.length !== 1 || kept.data.length !== count) {
    throw new ArtifactCorrupt(`${where}: ${kept.data.length} values for ${count} kept entries; send it again`);
  }
  const whole = emptyData(kept.dtype, mask.data.length);
  let at = 0;
  for (let i = 0; i < mask.data.length; i++) if (mask.data[i]) whole[i] = kept.data[at++] as number;
  return { dtype: kept.dtype, shape: mask.shape, data: whole };
}

/**
 * Every `<name>#kept` as the whole `<name>`, all else as it is. ArtifactCorrupt: kept values without a mask.
 * @param masks by tensor name
 */
export function unpacked(
  tensors: ReadonlyMap<string, Tensor>,
  masks: ReadonlyMap<string, Tensor>,
  where: string,
): Map<string, Tensor> {
  const whole = new Map<string, Tensor>();
  for (const [name, value] of tensors) {
    if (!name.endsWith(KEPT)) {
      whole.set(name, value);
      continue;
    }
    const base = name.slice(0, -KEPT.length);
    const mask = masks.get(base);
    if (mask === undefined) {
      throw new ArtifactCorrupt(`${where}: kept values of '${base}', which has no mask; send it again`);
    }
    whole.set(base, expand(value, mask, where));
  }
  return whole;
}

function fromBits(name: string, bits: Tensor, count: number, where: string): Uint8Array {
  if (bits.dtype !== "uint8" || bits.shape.length !== 1 || bits.data.length !== Math.ceil(count / 8)) {
    throw new ArtifactCorrupt(
      `${where}: mask of '${name}' has ${bits.data.length} bytes for ${count} entries; send it again`,
    );
  }
  const entries = new Uint8Array(count);
  for (let i = 0; i < count; i++) entries[i] = ((bits.data[i >> 3] as number) >> (7 - (i & 7))) & 1;
  return entries;
}

function fromPlaces(name: string, places: Tensor | undefined, count: number, where: string): Uint8Array {
  const isList = places !== undefined && places.dtype === "int32" && places.shape.length === 1 && count <= MOST_ENTRIES;
  const flat = isList ? (places.data as Int32Array) : undefined;
  if (flat === undefined || flat.some((place) => place >= count)) {
    throw new ArtifactCorrupt(`${where}: mask of '${name}' points outside its ${count} entries; send it again`);
  }
  let previous = -1;
  for (const place of flat) {
    if (place <= previous) {
      throw new ArtifactCorrupt(`${where}: mask of '${name}' is not in rising order; send it again`);
    }
    previous = place;
  }
  const entries = new Uint8Array(count);
  for (const place of flat) entries[place] = 1;
  return entries;
}

function keptCount(mask: Tensor): number {
  let kept = 0;
  for (const entry of mask.data as Uint8Array) kept += entry;
  return kept;
}

function countOf(shape: readonly number[]): number {
  return shape.reduce((count, size) => count * size, 1);
}
