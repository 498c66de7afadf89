/**
 * Tensors as safetensors bytes, and the check of a set against what was ordered.
 *
 * The header is read and bounded here before any array exists, so a hostile file costs its own size and no more.
 */

import { ArtifactCorrupt, UpdateRejected } from "./errors";
import { compareText } from "./shapes";
import { concreteShape, DTYPE_BYTES, type DType, type Tensor, type TensorData, type TensorSpec } from "./tensors";

/** A header of 4 MiB names about 40,000 tensors. */
export const MAX_HEADER_BYTES = 4 * 1024 * 1024;
/** Far above any model's; checked before anything is multiplied. */
export const MAX_DIMS = 32;

const MOST = 2 ** 48;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** In the order their data lies in a file: the widest first, so that every tensor is aligned. */
const FORMAT_DTYPES: readonly (readonly [DType, string])[] = [
  ["int64", "I64"],
  ["float32", "F32"],
  ["int32", "I32"],
  ["float16", "F16"],
  ["int8", "I8"],
  ["uint8", "U8"],
  ["bool", "BOOL"],
];
const FORMAT_NAME = new Map(FORMAT_DTYPES);
const DTYPE_OF: ReadonlyMap<unknown, DType> = new Map(FORMAT_DTYPES.map(([dtype, name]) => [name, dtype]));
const RANK = new Map(FORMAT_DTYPES.map(([dtype], index) => [dtype, index]));

interface Entry {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

/** Safetensors bytes of `tensors`, names sorted, no metadata: equal tensors give equal bytes, here and in Python. */
export function encodeTensors(tensors: ReadonlyMap<string, Tensor>): Uint8Array<ArrayBuffer> {
  const named = [...tensors].sort(([a], [b]) => compareText(a, b));
  const laidOut = [...named].sort(([, a], [, b]) => (RANK.get(a.dtype) ?? 0) - (RANK.get(b.dtype) ?? 0));
  const begins = new Map<string, number>();
  let total = 0;
  for (const [name, tensor] of laidOut) {
    checkData(name, tensor);
    begins.set(name, total);
    total += tensor.data.byteLength;
  }
  const entries = named.map(([name, tensor]) => {
    const begin = begins.get(name) ?? 0;
    const place = `"shape":[${tensor.shape}],"data_offsets":[${begin},${begin + tensor.data.byteLength}]`;
    return `${JSON.stringify(name)}:{"dtype":"${FORMAT_NAME.get(tensor.dtype)}",${place}}`;
  });
  const header = new TextEncoder().encode(`{${entries.join(",")}}`);
  const start = 8 + Math.ceil(header.length / 8) * 8;
  const file = new Uint8Array(start + total);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.fill(0x20, 8, start);
  file.set(header, 8);
  for (const [name, { data }] of laidOut) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), start + (begins.get(name) ?? 0));
  }
  return file;
}

/**
 * Tensors by name; views into `data` wherever they are aligned, so treat both as read-only.
 * ArtifactCorrupt: truncated, oversized header, overlapping or out-of-range tensors, unknown dtype.
 * @param where what these bytes are, for the message
 */
export function decodeTensors(data: Uint8Array, where: string): Map<string, Tensor> {
  const { entries, start } = readHeader(data, where);
  const tensors = new Map<string, Tensor>();
  for (const { name, dtype, shape, begin, end } of entries) {
    tensors.set(name, { dtype, shape, data: viewOf(dtype, data.subarray(start + begin, start + end)) });
  }
  return tensors;
}

/** Nothing when `tensors` are exactly `specs`: names, shapes, dtypes, finite values. UpdateRejected otherwise. */
export function checkTensors(tensors: ReadonlyMap<string, Tensor>, specs: Iterable<TensorSpec>, where: string): void {
  const expected = new Map([...specs].map((spec) => [spec.name, spec]));
  const missing = [...expected.keys()].filter((name) => !tensors.has(name)).sort(compareText);
  const extra = [...tensors.keys()].filter((name) => !expected.has(name)).sort(compareText);
  if (missing.length > 0 || extra.length > 0) {
    throw new UpdateRejected(
      `${where}: ${missing.length} tensors missing [${missing.slice(0, 3)}], ${extra.length} not ordered ` +
        `[${extra.slice(0, 3)}]; the device trained another artifact: re-plan it`,
    );
  }
  for (const [name, tensor] of tensors) {
    const spec = expected.get(name) as TensorSpec;
    const differs = String(tensor.shape) !== String(concreteShape(spec)) || tensor.dtype !== spec.dtype;
    if (differs) {
      throw new UpdateRejected(
        `${where}: '${name}' is ${tensor.dtype} [${tensor.shape}], the plan says ${spec.dtype} [${spec.shape}]; ` +
          "re-plan the device",
      );
    }
    const bad = countNotFinite(tensor);
    if (bad > 0) {
      throw new UpdateRejected(
        `${where}: '${name}' holds ${bad} values that are not finite; lower the learning rate or drop the device`,
      );
    }
  }
}

/** How many values of a float tensor are infinite or not a number; 0 for other dtypes. */
export function countNotFinite(tensor: Tensor): number {
  let bad = 0;
  if (tensor.dtype === "float32") {
    for (const value of tensor.data as Float32Array) if (!Number.isFinite(value)) bad++;
  } else if (tensor.dtype === "float16") {
    for (const value of tensor.data as Uint16Array) if ((value & 0x7c00) === 0x7c00) bad++;
  }
  return bad;
}

function readHeader(data: Uint8Array, where: string): { entries: readonly Entry[]; start: number } {
  const total = data.length;
  if (total < 8) {
    throw new ArtifactCorrupt(
      `${where}: tensor file of ${total} bytes is truncated, at least 8 expected; send it again`,
    );
  }
  const length = new DataView(data.buffer, data.byteOffset, 8).getBigUint64(0, true);
  if (length > BigInt(MAX_HEADER_BYTES) || 8 + Number(length) > total) {
    throw new ArtifactCorrupt(
      `${where}: tensor header says ${length} bytes, file has ${total} and the limit is ${MAX_HEADER_BYTES}; ` +
        "send it again",
    );
  }
  const start = 8 + Number(length);
  const raw = parseHeader(data.subarray(8, start), where);
  const entries = Object.entries(raw)
    .filter(([name]) => name !== "__metadata__")
    .map(([name, entry]) => headerEntry(name, entry, total - start, where));
  let previousEnd = 0;
  for (const { name, begin, end } of [...entries].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== previousEnd) {
      throw new ArtifactCorrupt(
        `${where}: tensor '${shown(name)}' starts at ${begin}, ${previousEnd} expected; send it again`,
      );
    }
    previousEnd = end;
  }
  if (previousEnd !== total - start) {
    throw new ArtifactCorrupt(
      `${where}: tensors end at byte ${previousEnd} of ${total - start}; the file is truncated or padded`,
    );
  }
  return { entries, start };
}

function parseHeader(bytes: Uint8Array, where: string): object {
  let raw: unknown;
  try {
    raw = JSON.parse(UTF8.decode(bytes));
  } catch (error) {
    throw new ArtifactCorrupt(`${where}: tensor header is not JSON; send it again`, { cause: error });
  }
  if (typeof raw !== "object" || raw === null || Array.isArray(raw)) {
    throw new ArtifactCorrupt(`${where}: tensor header is not an object; send it again`);
  }
  return raw;
}

function headerEntry(name: string, raw: unknown, bodyBytes: number, where: string): Entry {
  const entry = (typeof raw === "object" && raw !== null ? raw : {}) as Record<string, unknown>;
  const dtype = DTYPE_OF.get(entry.dtype);
  const { shape, data_offsets: offsets } = entry;
  if (dtype === undefined || !Array.isArray(shape) || !Array.isArray(offsets) || offsets.length !== 2) {
    throw new ArtifactCorrupt(`${where}: header of tensor '${shown(name)}' is not readable`);
  }
  if (shape.length > MAX_DIMS) {
    throw new ArtifactCorrupt(`${where}: tensor '${shown(name)}' has ${shape.length} dims, the limit is ${MAX_DIMS}`);
  }
  const isCount = (value: unknown) =>
    Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= MOST;
  if (![...shape, ...offsets].every(isCount)) {
    throw new ArtifactCorrupt(`${where}: tensor '${shown(name)}' has a shape or place that is no count`);
  }
  const [begin, end] = offsets as [number, number];
  let count = 1;
  let reach = 1;
  for (const size of shape as number[]) {
    count *= size;
    reach *= Math.max(1, size);
  }
  if (reach > MOST) {
    throw new ArtifactCorrupt(`${where}: tensor '${shown(name)}' has shape [${shape}], more than an array can index`);
  }
  if (end > bodyBytes || end - begin !== count * DTYPE_BYTES[dtype]) {
    throw new ArtifactCorrupt(
      `${where}: tensor '${shown(name)}' ${dtype}[${shape}] needs ${count * DTYPE_BYTES[dtype]} bytes, ` +
        `[${begin}, ${end}) of ${bodyBytes} given`,
    );
  }
  return { name, dtype, shape: shape as number[], begin, end };
}

function viewOf(dtype: DType, bytes: Uint8Array): TensorData {
  const size = DTYPE_BYTES[dtype];
  const { buffer, byteOffset } = bytes.byteOffset % size === 0 ? bytes : bytes.slice();
  const count = bytes.length / size;
  switch (dtype) {
    case "float32":
      return new Float32Array(buffer, byteOffset, count);
    case "float16":
      return new Uint16Array(buffer, byteOffset, count);
    case "int64":
      return new BigInt64Array(buffer, byteOffset, count);
    case "int32":
      return new Int32Array(buffer, byteOffset, count);
    case "int8":
      return new Int8Array(buffer, byteOffset, count);
    default:
      return new Uint8Array(buffer, byteOffset, count);
  }
}

function checkData(name: string, tensor: Tensor): void {
  const count = tensor.shape.reduce((product, size) => product * size, 1);
  if (tensor.data.byteLength !== count * DTYPE_BYTES[tensor.dtype]) {
    throw new TypeError(
      `tensor '${name}' ${tensor.dtype}[${tensor.shape}] has ${tensor.data.byteLength} bytes of data`,
    );
  }
}

function shown(name: string): string {
  return name.slice(0, 80);
}
