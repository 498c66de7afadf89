/** Entries of a ZIP archive, stored or deflated, with every size checked before anything is inflated. */

import { inflateSync } from "fflate";
import { DataError } from "../contracts/errors";

/** What one archive may hold inflated: what a phone can keep in memory beside a training. */
export const MOST_INFLATED_BYTES = 512 * 2 ** 20;
export const MOST_ENTRIES = 1000;

/** Deflate cannot do better: an entry that declares more is a lie, and is refused before memory is taken for it. */
const MOST_RATIO = 1032;

const END = 0x06054b50;
const CENTRAL = 0x02014b50;
const LOCAL = 0x04034b50;
const END_BYTES = 22;
const CENTRAL_BYTES = 46;
const LOCAL_BYTES = 30;
const STORED = 0;
const DEFLATED = 8;

interface Entry {
  readonly name: string;
  readonly flags: number;
  readonly method: number;
  readonly crc: number;
  readonly packed: number;
  readonly size: number;
  readonly offset: number;
}

/** An archive in memory. Its list of contents is read at once, an entry when it is asked for. */
export class ZipArchive {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #where: string;
  readonly #entries: ReadonlyMap<string, Entry>;

  /** @throws DataError for what is no archive, or one with too many or too large entries. */
  constructor(bytes: Uint8Array, where: string) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#where = where;
    try {
      this.#entries = this.#contents();
    } catch (error) {
      throw error instanceof RangeError ? this.#unreadable("it ends in the middle of its list of files") : error;
    }
  }

  get names(): string[] {
    return [...this.#entries.keys()];
  }

  /** The inflated bytes of `name`; DataError when they are not what the archive declares. */
  read(name: string): Uint8Array {
    const entry = this.#entries.get(name);
    if (entry === undefined) throw this.#unreadable(`no entry ${name} among ${this.names.join(", ")}`);
    if (entry.flags & 1) throw this.#unreadable(`${name} is encrypted`);
    if (entry.method !== STORED && entry.method !== DEFLATED) {
      throw this.#unreadable(`${name} is packed by method ${entry.method}, stored and deflated entries are read`);
    }
    if (entry.offset + LOCAL_BYTES > this.#bytes.length || this.#view.getUint32(entry.offset, true) !== LOCAL) {
      throw this.#unreadable(`${name} is not where the list of files says`);
    }
    const start =
      entry.offset +
      LOCAL_BYTES +
      this.#view.getUint16(entry.offset + 26, true) +
      this.#view.getUint16(entry.offset + 28, true);
    const packed = this.#bytes.subarray(start, start + entry.packed);
    const data = entry.method === STORED ? packed.slice() : this.#inflated(packed, entry);
    if (packed.length !== entry.packed || data.length !== entry.size) {
      throw this.#unreadable(`${name} has ${data.length} bytes, ${entry.size} are declared`);
    }
    if (crc32(data) !== entry.crc) throw this.#unreadable(`${name} is damaged, its checksum differs`);
    return data;
  }

  #inflated(packed: Uint8Array, entry: Entry): Uint8Array {
    if (entry.size > packed.length * MOST_RATIO + 64) {
      throw this.#unreadable(`${entry.name} declares ${entry.size} bytes in ${packed.length}, which cannot be`);
    }
    try {
      // One byte more than declared: a longer stream shows by filling it, and takes no more memory than that.
      return inflateSync(packed, { out: new Uint8Array(entry.size + 1) });
    } catch (error) {
      throw this.#unreadable(`${entry.name}: ${(error as Error).message}`);
    }
  }

  #contents(): Map<string, Entry> {
    const end = this.#end();
    const count = this.#view.getUint16(end + 10, true);
    let at = this.#view.getUint32(end + 16, true);
    if (count > MOST_ENTRIES) throw this.#unreadable(`${count} entries, at most ${MOST_ENTRIES} are read`);
    const entries = new Map<string, Entry>();
    let total = 0;
    for (let index = 0; index < count; index += 1) {
      if (this.#view.getUint32(at, true) !== CENTRAL) throw this.#unreadable("its list of files is damaged");
      const nameBytes = this.#view.getUint16(at + 28, true);
      const name = new TextDecoder().decode(this.#bytes.subarray(at + CENTRAL_BYTES, at + CENTRAL_BYTES + nameBytes));
      if (entries.has(name)) throw this.#unreadable(`${name} is in it twice`);
      const entry = {
        name,
        flags: this.#view.getUint16(at + 8, true),
        method: this.#view.getUint16(at + 10, true),
        crc: this.#view.getUint32(at + 16, true),
        packed: this.#view.getUint32(at + 20, true),
        size: this.#view.getUint32(at + 24, true),
        offset: this.#view.getUint32(at + 42, true),
      };
      entries.set(name, entry);
      total += entry.size;
      if (total > MOST_INFLATED_BYTES) {
        throw this.#unreadable(`${total} bytes inflated and more, at most ${MOST_INFLATED_BYTES} are read`);
      }
      at += CENTRAL_BYTES + nameBytes + this.#view.getUint16(at + 30, true) + this.#view.getUint16(at + 32, true);
    }
    return entries;
  }

  #end(): number {
    // A comment of up to 65535 bytes may follow.
    const least = Math.max(0, this.#bytes.length - END_BYTES - 0xffff);
    for (let at = this.#bytes.length - END_BYTES; at >= least; at -= 1) {
      if (this.#view.getUint32(at, true) === END) return at;
    }
    throw this.#unreadable("it is no ZIP archive");
  }

  #unreadable(reason: string): DataError {
    return new DataError(`${this.#where}: cannot be read (${reason}); replace the file`);
  }
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** The checksum that ZIP entries carry. */
export function crc32(bytes: Uint8Array): number {
  let value = 0xffffffff;
  for (const byte of bytes) value = (value >>> 8) ^ (CRC_TABLE[(value ^ byte) & 0xff] as number);
  return (value ^ 0xffffffff) >>> 0;
}
