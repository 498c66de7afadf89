/** What a tensor is on the wire and in a graph: name, shape, dtype, role. Bytes: tensorFile. */

import { defaulted, float, integer, list, oneOf, type Shape, type Struct, struct, text } from "./shapes";

const ROLES = [
  "parameter",
  "frozen",
  "buffer",
  "slot",
  "accumulator",
  "input",
  "target",
  "label_mask",
  "grad_mask",
  "teacher",
  "hyper",
  "draw",
  "loss",
  "metric",
] as const;
const DTYPES = ["float32", "float16", "int64", "int32", "int8", "uint8", "bool"] as const;

export type Role = (typeof ROLES)[number];
export type DType = (typeof DTYPES)[number];

/** The one symbolic dimension: examples in a batch. */
export const BATCH = "batch";

export const DTYPE_BYTES: Readonly<Record<DType, number>> = {
  float32: 4,
  float16: 2,
  int64: 8,
  int32: 4,
  int8: 1,
  uint8: 1,
  bool: 1,
};

/** Roles whose value is carried from step to step by the trainer; all others are fed or read per step. */
export const STATE_ROLES: ReadonlySet<Role> = new Set(["parameter", "frozen", "buffer", "slot", "accumulator"]);

/** `<name>#teacher` is the received value of tensor `<name>`; a session takes it from the order's `<name>`. */
export const TEACHER = "#teacher";

/** `<name>#gradient`: the sum of the gradients of `<name>` over the micro-batches of the step so far, a slot. */
export const GRADIENT_SUM = "#gradient";

/** One named tensor of an artifact. */
export interface TensorSpec {
  /** Module path (`layer1.0.conv1.weight`), slots `path#momentum`, factors `<layer>.u` and `<layer>.v`, draws `<layer>#draw`. */
  readonly name: string;
  /** Sizes in order; `"batch"` marks the batch dimension. */
  readonly shape: readonly (number | "batch")[];
  readonly dtype: DType;
  readonly role: Role;
  /** Of a masked parameter, its slots and its mask: at most so many entries are held; 0: all are. */
  readonly capacity: number;
  /** Of a bool draw, that an element is true; a float32 draw is uniform in [0, 1). */
  readonly probability: number;
}

const SIZE: Shape<number | "batch"> = {
  read: (value, path) => (value === BATCH ? BATCH : integer.read(value, path)),
  write: (writer, value) => (value === BATCH ? writer.text(value) : writer.integer(value)),
};

export const TensorSpec: Struct<TensorSpec> = struct<TensorSpec>("TensorSpec", {
  name: text,
  shape: list(SIZE),
  dtype: oneOf(...DTYPES),
  role: oneOf(...ROLES),
  capacity: defaulted(integer, 0),
  probability: defaulted(float, 0),
});

/**
 * A value, row-major: float32 in Float32Array, int64 in BigInt64Array, int32 in Int32Array, int8 in Int8Array, uint8
 * and bool (0 or 1) in Uint8Array, float16 as its bits in Uint16Array (not every browser has Float16Array).
 */
export interface Tensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly data: TensorData;
}

export type TensorData = Float32Array | Uint16Array | BigInt64Array | Int32Array | Int8Array | Uint8Array;

/** Zeros of a dtype. */
export function emptyData(dtype: DType, count: number): TensorData {
  switch (dtype) {
    case "float32":
      return new Float32Array(count);
    case "float16":
      return new Uint16Array(count);
    case "int64":
      return new BigInt64Array(count);
    case "int32":
      return new Int32Array(count);
    case "int8":
      return new Int8Array(count);
    default:
      return new Uint8Array(count);
  }
}

/** The shape with the batch dimension taken as `batch`. */
export function concreteShape(spec: TensorSpec, batch = 1): number[] {
  return spec.shape.map((size) => (size === BATCH ? batch : size));
}

/** Number of elements, with the batch dimension taken as `batch`. */
export function elementCount(spec: TensorSpec, batch = 1): number {
  return concreteShape(spec, batch).reduce((count, size) => count * size, 1);
}

/** Size in bytes, with the batch dimension taken as `batch`. */
export function byteCount(spec: TensorSpec, batch = 1): number {
  return elementCount(spec, batch) * DTYPE_BYTES[spec.dtype];
}

/** Whether the tensor's value stays with a session between steps instead of being fed with each. */
export function isCarried(spec: TensorSpec): boolean {
  return STATE_ROLES.has(spec.role) || spec.role === "grad_mask" || spec.role === "teacher";
}

/** The specs with one of the given roles, in their order. */
export function byRole(specs: Iterable<TensorSpec>, ...roles: Role[]): TensorSpec[] {
  return [...specs].filter((spec) => roles.includes(spec.role));
}
