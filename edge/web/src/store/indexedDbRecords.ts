/** Records in IndexedDB; CryptoKeys that cannot be extracted are kept as they are. */

import { done, openDatabase, result, withPrefix } from "./indexedDb";
import type { Records } from "./records";

const STORE = "records";

export class IndexedDbRecords implements Records {
  readonly #database: Promise<IDBDatabase>;

  constructor(name = "apportion-records") {
    this.#database = openDatabase(name, [STORE]);
    this.#database.catch(() => {}); // said by whoever asks for a record
  }

  async get<T>(key: string): Promise<T | undefined> {
    return (await result((await this.#store("readonly")).get(key))) as T | undefined;
  }

  async put(key: string, value: unknown): Promise<void> {
    const store = await this.#store("readwrite");
    store.put(value, key);
    await done(store.transaction);
  }

  async delete(key: string): Promise<void> {
    const store = await this.#store("readwrite");
    store.delete(key);
    await done(store.transaction);
  }

  async keys(prefix: string): Promise<string[]> {
    return (await result((await this.#store("readonly")).getAllKeys(withPrefix(prefix)))).map(String);
  }

  async close(): Promise<void> {
    (await this.#database).close();
  }

  async #store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
    return (await this.#database).transaction(STORE, mode).objectStore(STORE);
  }
}
