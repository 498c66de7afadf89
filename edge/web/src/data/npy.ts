/** One NumPy array file, versions 1 to 3: numbers, truth values and unicode text. Pickled objects are never read. */

import { DataError } from "../contracts/errors";
import { fromFloat16 } from "../contracts/float16";
import { shapeText, sizeOf, type Values } from "./examples";

export interface NpyArray {
  readonly values: Values | readonly string[];
  readonly shape: readonly number[];
}

const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
const MOST_HEADER_BYTES = 10_000;
const MOST_DIMENSIONS = 32;
const HEADER =
  /^\{\s*'descr':\s*'([<>|=]?)([a-zA-Z])(\d*)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([\d,\s]*)\),?\s*\}\s*$/;

/** The array in `bytes`; DataError naming `where` for anything else. */
export function readNpy(bytes: Uint8Array, where: string): NpyArray {
  const fail = (reason: string) => new DataError(`${where}: cannot be read (${reason}); replace the file`);
  if (bytes.length < 12 || MAGIC.some((byte, index) => bytes[index] !== byte)) throw fail("it is no NumPy array");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const version = bytes[6] as number;
  if (version < 1 || version > 3) throw fail(`format version ${version}, 1 to 3 are read`);
  const start = version === 1 ? 10 : 12;
  const length = version === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  if (length > MOST_HEADER_BYTES || start + length > bytes.length) throw fail(`a header of ${length} bytes`);
  const header = new TextDecoder(version === 3 ? "utf-8" : "latin1").decode(bytes.subarray(start, start + length));
  const found = HEADER.exec(header);
  if (found === null) throw fail(`its header is ${JSON.stringify(header.trim().slice(0, 120))}`);
  const [, order = "", kind = "", width = "", fortran, sizes = ""] = found;
  if (kind === "O") {
    throw new DataError(
      `${where}: holds pickled Python objects, which can run code and are not read; save numbers or text instead`,
    );
  }
  const shape = sizes.split(",").flatMap((size) => (size.trim() === "" ? [] : [Number(size)]));
  const count = sizeOf(shape);
  if (shape.length > MOST_DIMENSIONS || !Number.isSafeInteger(count)) throw fail(`shape ${shapeText(shape)}`);
  const item = itemReader(kind, Number(width), order !== ">");
  if (item === null) throw fail(`dtype ${order}${kind}${width}, numbers, truth values and unicode text are read`);
  const held = bytes.length - start - length;
  if (held !== count * item.bytes) {
    throw fail(`${held} bytes of data, shape ${shapeText(shape)} of ${kind}${width} has ${count * item.bytes}`);
  }
  const data = new DataView(bytes.buffer, bytes.byteOffset + start + length, held);
  const places = fortran === "True" && shape.length > 1 ? fortranPlaces(shape) : null;
  try {
    return { values: item.read(data, count, places), shape };
  } catch (error) {
    throw error instanceof RangeError ? fail(error.message) : error;
  }
}

interface ItemReader {
  readonly bytes: number;
  /** `places[i]` is where item i in row-major order lies; null: at i. */
  read(data: DataView, count: number, places: Int32Array | null): Values | string[];
}

function itemReader(kind: string, width: number, isLittle: boolean): ItemReader | null {
  const numbers = <T extends Values>(
    Kind: new (count: number) => T,
    get: (data: DataView, at: number) => T[number],
    bytes = width,
  ): ItemReader => ({
    bytes,
    read: (data, count, places) => {
      const values = new Kind(count);
      for (let i = 0; i < count; i += 1) values[i] = get(data, (places?.[i] ?? i) * bytes) as never;
      return values;
    },
  });
  switch (`${kind}${kind === "U" ? "" : width}`) {
    case "b1":
      return numbers(Uint8Array, (data, at) => (data.getUint8(at) === 0 ? 0 : 1));
    case "u1":
      return numbers(Uint8Array, (data, at) => data.getUint8(at));
    case "i1":
      return numbers(Int8Array, (data, at) => data.getInt8(at));
    case "u2":
      return numbers(Uint16Array, (data, at) => data.getUint16(at, isLittle));
    case "i2":
      return numbers(Int16Array, (data, at) => data.getInt16(at, isLittle));
    case "u4":
      return numbers(BigInt64Array, (data, at) => BigInt(data.getUint32(at, isLittle)), 4);
    case "i4":
      return numbers(Int32Array, (data, at) => data.getInt32(at, isLittle));
    case "u8":
      return numbers(BigInt64Array, (data, at) => {
        const value = data.getBigUint64(at, isLittle);
        if (value >= 1n << 63n) throw new RangeError(`${value} is beyond 64-bit whole numbers with a sign`);
        return value;
      });
    case "i8":
      return numbers(BigInt64Array, (data, at) => data.getBigInt64(at, isLittle));
    case "f2":
      return numbers(Float32Array, (data, at) => fromFloat16(data.getUint16(at, isLittle)), 2);
    case "f4":
      return numbers(Float32Array, (data, at) => data.getFloat32(at, isLittle));
    case "f8":
      return numbers(Float64Array, (data, at) => data.getFloat64(at, isLittle));
    case "U":
      return {
        bytes: width * 4,
        read: (data, count, places) =>
          Array.from({ length: count }, (_, i) => unicode(data, (places?.[i] ?? i) * width * 4, width, isLittle)),
      };
    default:
      return null;
  }
}

function unicode(data: DataView, start: number, width: number, isLittle: boolean): string {
  const points: number[] = [];
  for (let i = 0; i < width; i += 1) points.push(data.getUint32(start + 4 * i, isLittle));
  while (points.at(-1) === 0) points.pop(); // NumPy fills up with zeros
  return String.fromCodePoint(...points);
}

/** Where the items of an array kept column by column lie, in row-major order. */
function fortranPlaces(shape: readonly number[]): Int32Array {
  const places = new Int32Array(sizeOf(shape));
  const steps = shape.map((_, axis) => sizeOf(shape.slice(0, axis)));
  for (let i = 0; i < places.length; i += 1) {
    let rest = i;
    let place = 0;
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      const size = shape[axis] as number;
      place += (rest % size) * (steps[axis] as number);
      rest = Math.floor(rest / size);
    }
    places[i] = place;
  }
  return places;
}
