/** Raw examples and labels brought into the shape, layout and dtype that a manifest says, or refused in words. */

import { DataError } from "../contracts/errors";
import type { ArtifactManifest, InputSpec } from "../contracts/manifest";
import { dtypeOf, hasSameSizes, type LocalData, listText, shapeText, sizeOf, type Values } from "./examples";

/** What a graph's inputs and targets are fed from. */
export type Fed = Float32Array | BigInt64Array | Int32Array | Uint8Array | Int8Array;

/**
 * The values of `data` as examples of `spec.shape`, raw and in their own dtype.
 *
 * @throws DataError for values that are not finite, symbols out of range, or a shape that does not fit.
 */
export function fitInput(data: LocalData, spec: InputSpec): Values {
  const { values, shape } = data.x;
  const isFloat = values instanceof Float32Array || values instanceof Float64Array;
  if (spec.dtype === "int64" && (isFloat || (spec.vocabulary > 0 && isOutside(values, spec.vocabulary)))) {
    const symbols = `x must hold symbols 0..${spec.vocabulary - 1}`;
    throw new DataError(`${data.where}: ${symbols}; got ${dtypeOf(values)} values outside`);
  }
  if (isFloat && !values.every(Number.isFinite)) {
    throw new DataError(`${data.where}: x holds values that are not finite; clean the data`);
  }
  const found = shape.slice(1);
  if (hasSameSizes(found, spec.shape)) return values;
  if (spec.layout === "features" && sizeOf(found) === sizeOf(spec.shape)) return values;
  const [channels = 0, height = 0, width = 0] = spec.shape;
  if (spec.layout === "chw" && channels === 1 && hasSameSizes(found, spec.shape.slice(1))) return values;
  if (spec.layout === "chw" && hasSameSizes(found, [height, width, channels])) {
    return channelsFirst(values, height * width, channels);
  }
  throw new DataError(
    `${data.where}: examples have shape ${shapeText(found)}, the artifact takes ${shapeText(spec.shape)}; ` +
      "convert the data",
  );
}

/** The targets of `data` in the dtype of the manifest's first target, with the sizes of one of them. */
export function fitLabels(data: LocalData, manifest: ArtifactManifest): { values: Fed; shape: readonly number[] } {
  const target = manifest.tensors.find((spec) => spec.role === "target");
  const dtype = target?.dtype ?? "int64";
  const shape = (target?.shape.slice(1) ?? []).map(Number);
  let found = data.y.shape.slice(1);
  const values = isNames(data.y.values) ? numbersOf(data.y.values, data.where, manifest.classes) : data.y.values;
  if (found.length === 1 && found[0] === 1 && shape.length === 0) found = [];
  if (!hasSameSizes(found, shape)) {
    throw new DataError(
      `${data.where}: labels have shape ${shapeText(found)}, the artifact takes ${shapeText(shape)}; convert them`,
    );
  }
  const isWhole = !dtypeOf(values).startsWith("float");
  const count = manifest.classes.length;
  if (dtype.startsWith("int") && (!isWhole || (count > 0 && isOutside(values, count)))) {
    const [least, most] = rangeOf(values);
    throw new DataError(
      `${data.where}: labels are ${dtypeOf(values)} from ${least} to ${most}, whole numbers 0..${count - 1} ` +
        "expected; map them to the classes",
    );
  }
  return { values: asDtype(values, dtype, data.where), shape };
}

/** `values` one by one in the dtype called `dtype`. */
export function asDtype(values: Values | readonly number[], dtype: string, where: string): Fed {
  switch (dtype) {
    case "float32":
      return Float32Array.from(values as ArrayLike<number | bigint>, Number);
    case "int64":
      return values instanceof BigInt64Array
        ? values
        : BigInt64Array.from(values as ArrayLike<number>, (value) => BigInt(value));
    case "int32":
      return Int32Array.from(values as ArrayLike<number | bigint>, Number);
    case "int8":
      return Int8Array.from(values as ArrayLike<number | bigint>, Number);
    case "uint8":
      return Uint8Array.from(values as ArrayLike<number | bigint>, Number);
    default:
      throw new DataError(`${where}: an artifact that takes ${dtype} cannot be fed here; order another one`);
  }
}

function isNames(values: LocalData["y"]["values"]): values is readonly string[] {
  return Array.isArray(values) && typeof values[0] === "string";
}

function numbersOf(names: readonly string[], where: string, classes: readonly string[]): number[] {
  const numbers = new Map(classes.map((name, index) => [name, index]));
  const unknown = [...new Set(names)].filter((name) => !numbers.has(name)).sort();
  if (unknown.length > 0) {
    throw new DataError(
      `${where}: unknown classes ${listText(unknown.slice(0, 5))}, the artifact knows ` +
        `${listText(classes.slice(0, 20))}; rename or remove them`,
    );
  }
  return names.map((name) => numbers.get(name) ?? 0);
}

function isOutside(values: Values | readonly number[], count: number): boolean {
  for (const value of values) if (value < 0 || value >= count) return true;
  return false;
}

function rangeOf(values: Values | readonly number[]): [number, number] {
  let least = Number.POSITIVE_INFINITY;
  let most = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    least = Math.min(least, Number(value));
    most = Math.max(most, Number(value));
  }
  return [least, most];
}

function channelsFirst(values: Values, pixels: number, channels: number): Values {
  const moved = values.slice();
  const size = pixels * channels;
  for (let start = 0; start < values.length; start += size) {
    for (let channel = 0; channel < channels; channel += 1) {
      for (let pixel = 0; pixel < pixels; pixel += 1) {
        moved[start + channel * pixels + pixel] = values[start + pixel * channels + channel] as never;
      }
    }
  }
  return moved;
}
