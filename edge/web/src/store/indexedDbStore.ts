/** Files in IndexedDB, where a browser has no usable OPFS (Safari before 26 writes there from workers only). */

import type { FileEntry, Files } from "./files";
import { done, openDatabase, result } from "./indexedDb";

const DATA = "data";
const ENTRIES = "entries";

export class IndexedDbFiles implements Files {
  readonly #database: IDBDatabase;

  private constructor(database: IDBDatabase) {
    this.#database = database;
  }

  static async open(name: string): Promise<IndexedDbFiles> {
    return new IndexedDbFiles(await openDatabase(`apportion-files-${name}`, [DATA, ENTRIES]));
  }

  async list(): Promise<FileEntry[]> {
    return result(this.#database.transaction(ENTRIES).objectStore(ENTRIES).getAll());
  }

  async read(name: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const found: ArrayBuffer | undefined = await result(this.#database.transaction(DATA).objectStore(DATA).get(name));
    return found === undefined ? undefined : new Uint8Array(found);
  }

  async has(name: string): Promise<boolean> {
    return (await result(this.#database.transaction(ENTRIES).objectStore(ENTRIES).getKey(name))) !== undefined;
  }

  async write(name: string, data: Uint8Array): Promise<void> {
    const transaction = this.#database.transaction([DATA, ENTRIES], "readwrite");
    const entry: FileEntry = { name, size: data.length, writtenAt: Date.now() };
    transaction.objectStore(DATA).put(data.slice().buffer, name);
    transaction.objectStore(ENTRIES).put(entry, name);
    await done(transaction);
  }

  async remove(name: string): Promise<void> {
    const transaction = this.#database.transaction([DATA, ENTRIES], "readwrite");
    transaction.objectStore(DATA).delete(name);
    transaction.objectStore(ENTRIES).delete(name);
    await done(transaction);
  }

  close(): void {
    this.#database.close();
  }
}
