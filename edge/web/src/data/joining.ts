/** Examples of several sources as one set: fitted to an artifact each for itself, so that an error names its source. */

import { DataError } from "../contracts/errors";
import type { InputSpec } from "../contracts/manifest";
import { hasSameSizes, type LocalData, shapeText, sizeOf, type Values } from "./examples";
import { fitInput } from "./fitting";

/** All of `parts`, in order, x of `input.shape`. @throws DataError naming the part that does not fit. */
export function joined(parts: readonly LocalData[], input: InputSpec): LocalData {
  const [first] = parts;
  if (first === undefined) throw new DataError("no examples are on this device; pick files, take pictures or record");
  const count = parts.reduce((sum, part) => sum + (part.x.shape[0] ?? 0), 0);
  const fitted = parts.map((part) => fitInput(part, input));
  for (const part of parts) checkLabels(first, part);
  return {
    where: parts.length === 1 ? first.where : `${first.where} and ${parts.length - 1} more`,
    x: { values: concatenated(fitted, count * sizeOf(input.shape)), shape: [count, ...input.shape] },
    y: {
      values: parts.length === 1 ? first.y.values : labelsOf(parts),
      shape: [count, ...first.y.shape.slice(1)],
    },
  };
}

/** @throws DataError where labels of `part` are of another kind or shape than those of `first`. */
export function checkLabels(first: Labelled, part: Labelled): void {
  if (hasNames(first) !== hasNames(part)) {
    const kind = (data: Labelled) => (hasNames(data) ? "class names" : "numbers");
    throw new DataError(
      `${part.where}: labels are ${kind(part)}, those of ${first.where} are ${kind(first)}; remove one of the two`,
    );
  }
  const [one, other] = [first.y.shape.slice(1), part.y.shape.slice(1)];
  if (!hasSameSizes(one, other)) {
    throw new DataError(
      `${part.where}: labels have shape ${shapeText(other)}, those of ${first.where} ${shapeText(one)}; ` +
        "remove one of the two",
    );
  }
}

export interface Labelled {
  readonly where: string;
  readonly y: LocalData["y"];
}

function hasNames({ y }: Labelled): boolean {
  return typeof y.values[0] === "string";
}

function labelsOf(parts: readonly LocalData[]): LocalData["y"]["values"] {
  const first = parts[0] as LocalData;
  if (hasNames(first)) return parts.flatMap((part) => [...(part.y.values as readonly string[])]);
  const numbers: number[] = [];
  // Beyond 2^53 a label would lose its last digits; no class has such a number.
  for (const part of parts) for (const value of part.y.values) numbers.push(Number(value));
  return numbers;
}

function concatenated(arrays: readonly Values[], length: number): Values {
  const [first] = arrays;
  if (first !== undefined && arrays.length === 1) return first;
  const Kind = jointKind(arrays);
  const all = new Kind(length);
  let at = 0;
  for (const values of arrays) {
    if (values.constructor === Kind) all.set(values as never, at);
    else if (all instanceof BigInt64Array) all.set(BigInt64Array.from(values as ArrayLike<number>, BigInt), at);
    else all.set(Float64Array.from(values as ArrayLike<number>, Number), at);
    at += values.length;
  }
  return all;
}

/** The kind of array that holds the values of all, as NumPy chooses it: floats where one holds floats. */
function jointKind(arrays: readonly Values[]): new (length: number) => Values {
  const kinds = new Set(arrays.map((values) => values.constructor));
  const [only] = kinds;
  if (kinds.size === 1) return only as new (length: number) => Values;
  const small: unknown[] = [Float32Array, Uint8Array, Int8Array, Int16Array, Uint16Array];
  if (kinds.has(Float32Array) && [...kinds].every((kind) => small.includes(kind))) return Float32Array;
  return kinds.has(Float32Array) || kinds.has(Float64Array) ? Float64Array : BigInt64Array;
}
