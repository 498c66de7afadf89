// What browsers have and Node 18 has not: WebCrypto as a global, and IndexedDB.
import { webcrypto } from "node:crypto";
import "fake-indexeddb/auto";

if (globalThis.crypto === undefined) {
  Object.defineProperty(globalThis, "crypto", { value: webcrypto });
}
