import { readFileSync } from "node:fs";
import { zipSync } from "fflate";
import { describe, expect, it } from "vitest";
import { DataError } from "../../src/contracts/errors";
import { readNpz } from "../../src/data/npz";
import { crc32, ZipArchive } from "../../src/data/zip";

interface Archive {
  readonly name: string;
  readonly base64: string;
  readonly shape: number[];
  readonly x: number[];
  readonly y: string[];
}

const recorded = JSON.parse(readFileSync(new URL("archives.json", import.meta.url), "utf-8"));
const bytesOf = (base64: string) => Uint8Array.from(Buffer.from(base64, "base64"));

describe("archives written by NumPy", () => {
  it.each(recorded.cases as Archive[])("$name", (archive) => {
    const data = readNpz(bytesOf(archive.base64), "mine.npz");
    expect(data.x.shape).toEqual(archive.shape);
    expect(Array.from(data.x.values, Number)).toEqual(archive.x);
    expect(Array.from(data.y.values, String)).toEqual(archive.y);
    expect(data.y.shape).toEqual([archive.y.length]);
  });
});

describe("archives that are refused", () => {
  it.each([
    ["pickled", "mine.npz: x: holds pickled Python objects, which can run code"],
    ["structured", "its header is"],
    ["complex", "dtype <c8, numbers, truth values and unicode text are read"],
    ["nolabels", "no array ['y'] among ['x']"],
    ["lengths", "x has shape (2, 3, 2), y (3,)"],
    ["text", "x is text, numbers expected"],
    ["truncated", "88 bytes of data, shape (2, 3, 2) of i8 has 96"],
  ])("%s", (name, message) => {
    const read = () => readNpz(bytesOf(recorded.refused[name]), "mine.npz");
    expect(read).toThrow(DataError);
    expect(read).toThrow(message);
  });

  it("what is no archive", () => {
    expect(() => readNpz(new Uint8Array(100), "mine.npz")).toThrow("mine.npz: cannot be read (it is no ZIP archive)");
    expect(() => readNpz(new Uint8Array(3), "mine.npz")).toThrow("it is no ZIP archive");
  });

  /** An archive of 10,000 zeros, with four bytes of its list of contents changed. */
  function forged(field: number, value: number): Uint8Array {
    const bytes = zipSync({ "x.npy": new Uint8Array(10_000) });
    const view = new DataView(bytes.buffer);
    const central = view.getUint32(bytes.length - 22 + 16, true);
    view.setUint32(central + field, value, true);
    return bytes;
  }

  it("a bomb: sizes are checked before anything is inflated", () => {
    expect(() => new ZipArchive(forged(24, 0xfffffff0), "mine.npz")).toThrow("at most 536870912 are read");
    const small = new ZipArchive(forged(24, 400_000_000), "mine.npz");
    expect(() => small.read("x.npy")).toThrow(/declares 400000000 bytes in \d+, which cannot be/);
  });

  it("an entry that inflates to more or less than declared, or to other bytes", () => {
    expect(() => new ZipArchive(forged(24, 9_000), "mine.npz").read("x.npy")).toThrow("9000 are declared");
    expect(() => new ZipArchive(forged(24, 11_000), "mine.npz").read("x.npy")).toThrow("11000 are declared");
    expect(() => new ZipArchive(forged(16, 1), "mine.npz").read("x.npy")).toThrow("its checksum differs");
    expect(() => new ZipArchive(forged(42, 7), "mine.npz").read("x.npy")).toThrow("not where the list of files says");
    expect(() => new ZipArchive(forged(42, 0x7fffffff), "mine.npz").read("x.npy")).toThrow("not where the list");
  });

  it("changed at random is read as numbers or refused in words, never anything else", () => {
    let seed = 1;
    const random = (below: number) => {
      seed = (seed * 48271) % 2147483647; // Source: Park and Miller, 1988, with their later multiplier
      return seed % below;
    };
    let refused = 0;
    for (let i = 0; i < 400; i += 1) {
      const bytes = bytesOf(recorded.cases[i % recorded.cases.length].base64);
      for (let change = 0; change < 1 + random(3); change += 1) bytes[random(bytes.length)] = random(256);
      try {
        readNpz(random(5) === 0 ? bytes.subarray(0, random(bytes.length)) : bytes, "mine.npz");
      } catch (error) {
        expect(error).toBeInstanceOf(DataError);
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(200);
  });

  it("the checksum is that of ZIP", () => {
    // Source: the check value of CRC-32/ISO-HDLC.
    expect(crc32(new TextEncoder().encode("123456789"))).toBe(0xcbf43926);
  });
});
