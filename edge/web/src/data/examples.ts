/** Local examples as they are and as an artifact takes them. Nothing here leaves the device. */

export type Values =
  | Float32Array
  | Float64Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Int8Array
  | Int16Array
  | Uint16Array;

/** Raw examples: x [N, ...shape] row-major, y class names or numbers. `where` names the source in messages. */
export interface LocalData {
  readonly where: string;
  readonly x: { readonly values: Values; readonly shape: readonly number[] };
  readonly y: { readonly values: readonly string[] | readonly number[]; readonly shape: readonly number[] };
}
