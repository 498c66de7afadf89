/** A blob store and records in memory: for tests, and for a browser that gives a page no storage at all. */

import { FileStore, type FileStoreOptions } from "./fileStore";
import type { FileEntry, Files } from "./files";
import type { Records } from "./records";

export class MemoryFiles implements Files {
  readonly contents = new Map<string, { data: Uint8Array<ArrayBuffer>; writtenAt: number }>();
  #writes = 0;

  async list(): Promise<FileEntry[]> {
    return [...this.contents].map(([name, { data, writtenAt }]) => ({ name, size: data.length, writtenAt }));
  }

  async read(name: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
    return this.contents.get(name)?.data.slice();
  }

  async has(name: string): Promise<boolean> {
    return this.contents.has(name);
  }

  async write(name: string, data: Uint8Array): Promise<void> {
    this.#writes += 1;
    this.contents.set(name, { data: Uint8Array.from(data), writtenAt: this.#writes });
  }

  async remove(name: string): Promise<void> {
    this.contents.delete(name);
  }
}

export class MemoryStore extends FileStore {
  constructor(options: FileStoreOptions = {}, files: MemoryFiles = new MemoryFiles()) {
    super(files, options);
  }
}

export class MemoryRecords implements Records {
  readonly #values = new Map<string, unknown>();

  async get<T>(key: string): Promise<T | undefined> {
    return this.#values.has(key) ? structuredClone(this.#values.get(key) as T) : undefined;
  }

  async put(key: string, value: unknown): Promise<void> {
    this.#values.set(key, structuredClone(value));
  }

  async delete(key: string): Promise<void> {
    this.#values.delete(key);
  }

  async keys(prefix: string): Promise<string[]> {
    return [...this.#values.keys()].filter((key) => key.startsWith(prefix)).sort();
  }
}
