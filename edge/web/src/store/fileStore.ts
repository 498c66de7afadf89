/**
 * Blobs by digest in files of a browser's own storage, within a quota; partial ones are resumed.
 *
 *     blob-<digest>                      complete, its digest checked when it was written
 *     part-<digest>.<encoding>-<offset>  a piece of what was received so far
 *     used                               digest -> when it was last needed
 *
 * What arrives is gathered into pieces, so that a killed tab loses one piece at most, and a write costs no copy of what
 * was written before. One instance at a time may write (the agent's); others, such as the trainer's worker, read.
 */

import { ArtifactCorrupt, MessageRejected, StoreFull } from "../contracts/errors";
import type { BlobRef } from "../contracts/plan";
import type { BlobStore } from "./blobStore";
import { sha256Hex } from "./digest";
import type { FileEntry, Files } from "./files";

const PIECE_BYTES = 1 << 20;
/** Written once it is so old, though smaller than a piece: on slow links a piece takes minutes. */
const PIECE_MS = 2_000;
const DIGEST = /^[0-9a-f]{64}$/;
const PART = /^part-([0-9a-f]{64})\.(raw|zstd)-(\d+)$/;

export interface FileStoreOptions {
  /** What all files may take; 0: as much as the browser gives. */
  readonly quotaBytes?: number;
  /** What the browser gives, in bytes. */
  readonly available?: () => Promise<number>;
  readonly pieceBytes?: number;
}

interface Tail {
  readonly key: string;
  readonly start: number;
  chunks: Uint8Array[];
  length: number;
  readonly since: number;
}

export class FileStore implements BlobStore {
  readonly #files: Files;
  readonly #options: FileStoreOptions;
  #tail: Tail | null = null;
  #pins = new Set<string>();
  #used: Map<string, number> | null = null;

  constructor(files: Files, options: FileStoreOptions = {}) {
    this.#files = files;
    this.#options = options;
  }

  async has(digest: string): Promise<boolean> {
    return this.#files.has(blobName(digest));
  }

  async read(digest: string): Promise<Uint8Array> {
    const data = await this.#files.read(blobName(digest));
    if (data === undefined) throw new ArtifactCorrupt(`blob ${digest.slice(0, 12)} is not stored; fetch it`);
    const found = await sha256Hex(data);
    if (found === digest) return data;
    await this.delete(digest);
    throw new ArtifactCorrupt(
      `blob ${digest.slice(0, 12)} is stored with digest ${found.slice(0, 12)}; it was dropped, fetch it again`,
    );
  }

  async received(ref: BlobRef): Promise<number> {
    const key = partKey(ref);
    if (this.#tail?.key === key) return this.#tail.start + this.#tail.length;
    return sizeOf(await this.#pieces(key));
  }

  async append(ref: BlobRef, data: Uint8Array): Promise<void> {
    const key = partKey(ref);
    if (this.#tail?.key !== key) {
      await this.flush();
      const start = sizeOf(await this.#pieces(key));
      await this.#reserve(Math.max(data.length, (ref.encoded_size || ref.size) - start));
      this.#tail = { key, start, chunks: [], length: 0, since: Date.now() };
    }
    const tail = this.#tail;
    tail.chunks.push(data.slice());
    tail.length += data.length;
    const isOld = Date.now() - tail.since >= PIECE_MS;
    if (tail.length >= (this.#options.pieceBytes ?? PIECE_BYTES) || isOld) {
      await this.flush();
      this.#tail = { key, start: tail.start + tail.length, chunks: [], length: 0, since: Date.now() };
    }
  }

  /** Writes what was received and gathered only. */
  async flush(): Promise<void> {
    const tail = this.#tail;
    this.#tail = null;
    if (tail === null || tail.length === 0) return;
    await this.#write(`part-${tail.key}-${tail.start}`, joined(tail.chunks, tail.length));
  }

  async complete(ref: BlobRef): Promise<void> {
    const key = partKey(ref);
    const pieces = await this.#pieces(key);
    const chunks: Uint8Array[] = [];
    for (const piece of pieces) chunks.push((await this.#files.read(piece.name)) ?? new Uint8Array());
    if (this.#tail?.key === key) {
      chunks.push(...this.#tail.chunks);
      this.#tail = null;
    }
    const data = joined(
      chunks,
      chunks.reduce((sum, chunk) => sum + chunk.length, 0),
    );
    const found = await sha256Hex(data);
    const isRight = found === ref.digest && data.length === ref.size;
    try {
      if (isRight) await this.#write(blobName(ref.digest), data);
    } finally {
      for (const piece of pieces) await this.#files.remove(piece.name);
    }
    if (!isRight) {
      throw new ArtifactCorrupt(
        `blob ${ref.digest.slice(0, 12)} of ${ref.size} bytes arrived with digest ${found.slice(0, 12)} and ` +
          `${data.length} bytes; fetch it again`,
      );
    }
  }

  async pin(digests: readonly string[]): Promise<void> {
    this.#pins = new Set(digests);
    const used = await this.#lastUsed();
    for (const digest of digests) used.set(digest, Date.now());
    const present = new Set([...(await this.#files.list()).map((file) => digestOf(file.name)), ...digests]);
    for (const digest of used.keys()) if (!present.has(digest)) used.delete(digest);
    await this.#write("used", new TextEncoder().encode(JSON.stringify([...used])));
  }

  async usage(): Promise<{ bytes: number; quota: number; blobs: number }> {
    const files = await this.#files.list();
    const blobs = files.filter((file) => file.name.startsWith("blob-")).length;
    return { bytes: sizeOf(files), quota: await this.#quota(sizeOf(files)), blobs };
  }

  async delete(digest: string): Promise<void> {
    checkDigest(digest);
    if (this.#tail?.key.startsWith(digest)) this.#tail = null;
    for (const file of await this.#files.list()) {
      if (digestOf(file.name) === digest) await this.#files.remove(file.name);
    }
  }

  async clear(): Promise<void> {
    this.#tail = null;
    this.#used = null;
    for (const file of await this.#files.list()) await this.#files.remove(file.name);
  }

  /** The pieces of `key` that follow one another from 0 on. */
  async #pieces(key: string): Promise<FileEntry[]> {
    const found = (await this.#files.list())
      .filter((file) => file.name.startsWith(`part-${key}-`))
      .sort((a, b) => startOf(a.name) - startOf(b.name));
    let end = 0;
    const usable: FileEntry[] = [];
    for (const piece of found) {
      if (startOf(piece.name) !== end) await this.#files.remove(piece.name);
      else {
        usable.push(piece);
        end += piece.size;
      }
    }
    return usable;
  }

  /** Room for `size` bytes: the longest unused blobs go, those that are pinned never. */
  async #reserve(size: number): Promise<void> {
    const files = await this.#files.list();
    const bytes = sizeOf(files);
    const quota = await this.#quota(bytes);
    const missing = bytes + size - quota;
    if (missing <= 0) return;
    const victims = await this.#evictable(files, missing);
    if (sizeOf(victims) < missing) {
      throw new StoreFull(
        `store: ${size} bytes do not fit the quota of ${quota} with ${bytes} in use, ` +
          `${missing - sizeOf(victims)} too many; raise the quota or free storage`,
      );
    }
    for (const file of victims) await this.#files.remove(file.name);
  }

  /** Of `files` as many as hold `missing` bytes, the longest unused first; fewer when there are no more. */
  async #evictable(files: readonly FileEntry[], missing: number): Promise<FileEntry[]> {
    const used = await this.#lastUsed();
    const lastUsed = (file: FileEntry) => used.get(digestOf(file.name)) ?? file.writtenAt;
    const free = files.filter((file) => digestOf(file.name) !== "" && !this.#pins.has(digestOf(file.name)));
    const victims: FileEntry[] = [];
    for (const file of free.sort((a, b) => lastUsed(a) - lastUsed(b))) {
      if (sizeOf(victims) >= missing) break;
      victims.push(file);
    }
    return victims;
  }

  /** What all files may take, `bytes` being what they take now. */
  async #quota(bytes: number): Promise<number> {
    const available = this.#options.available === undefined ? Number.MAX_SAFE_INTEGER : await this.#options.available();
    const most = Math.min(Number.MAX_SAFE_INTEGER, bytes + available);
    return this.#options.quotaBytes ? Math.min(this.#options.quotaBytes, most) : most;
  }

  async #lastUsed(): Promise<Map<string, number>> {
    if (this.#used !== null) return this.#used;
    const data = await this.#files.read("used");
    try {
      this.#used = new Map(JSON.parse(new TextDecoder().decode(data)) as [string, number][]);
    } catch {
      this.#used = new Map(); // none yet, or of another release
    }
    return this.#used;
  }

  /** Browsers promise room that they do not have: when a write fails, what nobody needs goes, and it is tried again. */
  async #write(name: string, data: Uint8Array): Promise<void> {
    try {
      return await this.#files.write(name, data);
    } catch (error) {
      const victims = await this.#evictable(await this.#files.list(), data.length);
      for (const file of victims) await this.#files.remove(file.name);
      if (victims.length === 0) throw fullAt(data, error);
    }
    await this.#files.write(name, data).catch((error: unknown) => {
      throw fullAt(data, error);
    });
  }
}

function fullAt(data: Uint8Array, cause: unknown): StoreFull {
  return new StoreFull(`store: ${data.length} bytes cannot be written (${String(cause)}); free storage`, { cause });
}

function checkDigest(digest: string): string {
  if (DIGEST.test(digest)) return digest;
  throw new MessageRejected(`store: digest '${digest.slice(0, 80)}' is not 64 lower-case hex digits`);
}

function blobName(digest: string): string {
  return `blob-${checkDigest(digest)}`;
}

function partKey(ref: BlobRef): string {
  return `${checkDigest(ref.digest)}.${ref.encoding}`;
}

function digestOf(name: string): string {
  return name.startsWith("blob-") ? name.slice(5) : (PART.exec(name)?.[1] ?? "");
}

function startOf(name: string): number {
  return Number(PART.exec(name)?.[3] ?? Number.NaN);
}

function sizeOf(files: readonly FileEntry[]): number {
  return files.reduce((sum, file) => sum + file.size, 0);
}

function joined(chunks: readonly Uint8Array[], length: number): Uint8Array<ArrayBuffer> {
  const data = new Uint8Array(length);
  let offset = 0;
  for (const chunk of chunks) {
    data.set(chunk, offset);
    offset += chunk.length;
  }
  return data;
}
