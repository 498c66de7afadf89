/** Local examples as they are, in their own dtypes. Nothing here leaves the device. */

export type Values =
  | Float32Array
  | Float64Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Int8Array
  | Int16Array
  | Uint16Array;

/**
 * Raw examples: x [N, ...shape] row-major, y class names or numbers. `where` names the source in messages.
 * Numbers in a plain array count as whole ones when all of them are.
 */
export interface LocalData {
  readonly where: string;
  readonly x: { readonly values: Values; readonly shape: readonly number[] };
  readonly y: { readonly values: readonly string[] | readonly number[] | Values; readonly shape: readonly number[] };
}

/** NumPy's name of the values' dtype, for messages. */
export function dtypeOf(values: Values | readonly number[]): string {
  if (Array.isArray(values)) return values.every(Number.isInteger) ? "int64" : "float64";
  return (values as Values).constructor.name.replace("Big", "").replace("Array", "").toLowerCase();
}

/** A shape as Python writes it: `(3, 32, 32)`, `(5,)`. */
export function shapeText(shape: readonly number[]): string {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

/** A list of names as Python writes it: `['cat', 'dog']`. */
export function listText(names: readonly string[]): string {
  return `[${names.map((name) => `'${name}'`).join(", ")}]`;
}

export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

export function hasSameSizes(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((size, index) => size === b[index]);
}
