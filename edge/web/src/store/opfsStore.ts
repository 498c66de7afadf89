/**
 * Files in the origin's private file system (OPFS), from a page or a worker.
 *
 * Written through `createWritable`, which both have and which puts a file in place whole or not at all. A worker's sync
 * access handles would be faster by small writes; what is written here comes in pieces of 1 MB.
 */

import type { FileEntry, Files } from "./files";

/** What TypeScript's own declarations leave to a library that the compiler options do not name. */
type IterableFolder = FileSystemDirectoryHandle & { values(): AsyncIterable<FileSystemHandle> };

export class OpfsFiles implements Files {
  readonly #folder: FileSystemDirectoryHandle;

  private constructor(folder: FileSystemDirectoryHandle) {
    this.#folder = folder;
  }

  /** @throws whatever the browser says when it has no such file system, or refuses it to this page. */
  static async open(name: string): Promise<OpfsFiles> {
    const root = await navigator.storage.getDirectory();
    const files = new OpfsFiles(await root.getDirectoryHandle(name, { create: true }));
    await files.write("probe", new Uint8Array([1]));
    await files.remove("probe");
    return files;
  }

  async list(): Promise<FileEntry[]> {
    const entries: FileEntry[] = [];
    for await (const handle of (this.#folder as IterableFolder).values()) {
      if (handle.kind !== "file") continue;
      const file = await gone((handle as FileSystemFileHandle).getFile());
      // What a write that was cut short has left has another ending.
      if (file !== undefined && !file.name.endsWith(".crswap")) {
        entries.push({ name: file.name, size: file.size, writtenAt: file.lastModified });
      }
    }
    return entries;
  }

  async read(name: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const handle = await gone(this.#folder.getFileHandle(name));
    const file = handle && (await gone(handle.getFile()));
    return file && new Uint8Array(await file.arrayBuffer());
  }

  async has(name: string): Promise<boolean> {
    // A tab that is killed while it writes leaves an empty file under the name.
    const handle = await gone(this.#folder.getFileHandle(name));
    const file = handle && (await gone(handle.getFile()));
    return file !== undefined && file.size > 0;
  }

  async write(name: string, data: Uint8Array): Promise<void> {
    const handle = await this.#folder.getFileHandle(name, { create: true });
    const stream = await handle.createWritable();
    try {
      await stream.write(data as Uint8Array<ArrayBuffer>);
      await stream.close();
    } catch (error) {
      await stream.abort().catch(() => {});
      throw error;
    }
  }

  async remove(name: string): Promise<void> {
    await gone(this.#folder.removeEntry(name));
  }
}

/** What `promise` gives; undefined where the browser says that there is no such file. */
async function gone<T>(promise: Promise<T>): Promise<T | undefined> {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotFoundError") return undefined;
    throw error;
  }
}
