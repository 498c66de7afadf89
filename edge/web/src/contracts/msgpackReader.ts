/**
 * Msgpack in: strict, bounded in depth, and with the place of every value, which signatures need; whole numbers and floats
 * stay apart.
 */

import { MessageRejected } from "./errors";

/** A number that came as a float: an integer field does not take it. */
export class Float {
  constructor(readonly value: number) {}
}

/** What no field takes: an extension, or a map with keys that are not text. */
export const OPAQUE = Symbol("a value without a meaning here");

/** Maps have no prototype; whole numbers beyond 2^53 are bigint. */
export type Packed =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | Float
  | typeof OPAQUE
  | Packed[]
  | { [key: string]: Packed };

const MAX_DEPTH = 64;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads values one after the other; whatever is wrong with the bytes is a MessageRejected. */
export class MsgpackReader {
  private readonly view: DataView;
  private at = 0;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Bytes read so far. */
  get offset(): number {
    return this.at;
  }

  /** Entries of the map that begins here. */
  mapSize(): number {
    const tag = this.uint(1);
    if (tag >= 0x80 && tag <= 0x8f) return this.room(tag & 0x0f, 2);
    if (tag === 0xde || tag === 0xdf) return this.room(this.uint(tag === 0xde ? 2 : 4), 2);
    throw new MessageRejected(`a map expected, byte ${hex(tag)} came`);
  }

  /** The value that begins here. Byte strings are views. */
  value(depth = 0): Packed {
    if (depth > MAX_DEPTH) throw new MessageRejected(`values nested more than ${MAX_DEPTH} deep`);
    const tag = this.uint(1);
    if (tag <= 0x7f) return tag;
    if (tag >= 0xe0) return tag - 0x100;
    if (tag <= 0x8f) return this.map(tag & 0x0f, depth);
    if (tag <= 0x9f) return this.list(tag & 0x0f, depth);
    if (tag <= 0xbf) return this.text(tag & 0x1f);
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return tag === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.take(this.uint(1 << (tag - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        this.take(this.uint(1 << (tag - 0xc7)) + 1);
        return OPAQUE;
      case 0xca:
        return new Float(this.view.getFloat32(this.step(4)));
      case 0xcb:
        return new Float(this.view.getFloat64(this.step(8)));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.uint(1 << (tag - 0xcc));
      case 0xcf:
        return shortest(this.view.getBigUint64(this.step(8)));
      case 0xd0:
        return this.view.getInt8(this.step(1));
      case 0xd1:
        return this.view.getInt16(this.step(2));
      case 0xd2:
        return this.view.getInt32(this.step(4));
      case 0xd3:
        return shortest(this.view.getBigInt64(this.step(8)));
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        this.take((1 << (tag - 0xd4)) + 1);
        return OPAQUE;
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.uint(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.list(this.uint(tag === 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.uint(tag === 0xde ? 2 : 4), depth);
      default:
        throw new MessageRejected(`byte ${hex(tag)} at ${this.at - 1} begins no value`);
    }
  }

  /** Nothing more may follow. */
  end(): void {
    if (this.at !== this.bytes.length) {
      throw new MessageRejected(`${this.bytes.length - this.at} bytes follow after the end, at byte ${this.at}`);
    }
  }

  private list(size: number, depth: number): Packed[] {
    this.room(size, 1);
    const entries: Packed[] = [];
    for (let i = 0; i < size; i++) entries.push(this.value(depth + 1));
    return entries;
  }

  private map(size: number, depth: number): Packed {
    this.room(size, 2);
    // Without a prototype, "__proto__" is a key like any other.
    const entries = Object.create(null) as { [key: string]: Packed };
    let isText = true;
    for (let i = 0; i < size; i++) {
      const key = this.value(depth + 1);
      const value = this.value(depth + 1);
      if (typeof key === "string") entries[key] = value;
      else isText = false;
    }
    return isText ? entries : OPAQUE;
  }

  private text(size: number): string {
    const bytes = this.take(size);
    try {
      return UTF8.decode(bytes);
    } catch (error) {
      throw new MessageRejected(`text at byte ${this.at - size} is not UTF-8`, { cause: error });
    }
  }

  private take(size: number): Uint8Array {
    const from = this.step(size);
    return this.bytes.subarray(from, from + size);
  }

  private uint(size: number): number {
    const from = this.step(size);
    return size === 1 ? this.view.getUint8(from) : size === 2 ? this.view.getUint16(from) : this.view.getUint32(from);
  }

  private step(size: number): number {
    const from = this.at;
    if (size > this.bytes.length - from) {
      throw new MessageRejected(`${size} bytes promised at byte ${from}, ${this.bytes.length - from} are there`);
    }
    this.at = from + size;
    return from;
  }

  /** `size` itself when so many entries of at least `each` bytes can still come. */
  private room(size: number, each: number): number {
    if (size * each > this.bytes.length - this.at) {
      throw new MessageRejected(`${size} entries promised at byte ${this.at} of ${this.bytes.length}`);
    }
    return size;
  }
}

function shortest(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function hex(byte: number): string {
  return `0x${byte.toString(16).padStart(2, "0")}`;
}
