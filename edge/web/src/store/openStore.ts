/** Opens the blob store called `name` in the best storage that the browser gives; page and worker get the same one. */

import { ConfigError } from "../contracts/errors";
import { FileStore, type FileStoreOptions } from "./fileStore";
import type { Files } from "./files";
import { IndexedDbFiles } from "./indexedDbStore";
import { MemoryFiles } from "./memoryStore";
import { OpfsFiles } from "./opfsStore";

/** Left to the page's other needs and to the browser. */
const RESERVE_BYTES = 16 << 20;

export interface OpenedStore {
  readonly store: FileStore;
  readonly kind: "opfs" | "indexeddb" | "memory";
  /** Why it is not the first of those; empty for that one. A store in memory ends with the page, no worker has it. */
  readonly reason: string;
}

export async function openStore(name: string, options: FileStoreOptions = {}): Promise<OpenedStore> {
  const all: FileStoreOptions = { available, ...options };
  const reasons: string[] = [];
  const kinds: [OpenedStore["kind"], () => Promise<Files>][] = [
    ["opfs", () => OpfsFiles.open(name)],
    ["indexeddb", () => IndexedDbFiles.open(name)],
  ];
  for (const [kind, open] of kinds) {
    try {
      return { store: new FileStore(await open(), all), kind, reason: reasons.join("; ") };
    } catch (error) {
      reasons.push(`no ${kind} here (${error instanceof Error ? error.message : String(error)})`);
    }
  }
  return { store: new FileStore(new MemoryFiles(), all), kind: "memory", reason: reasons.join("; ") };
}

/** As `openStore`. @throws ConfigError when it would be in memory, which no worker has. */
export async function openSharedStore(name: string): Promise<FileStore> {
  const { store, kind, reason } = await openStore(name);
  if (kind !== "memory") return store;
  throw new ConfigError([`this browser gives the page no storage: ${reason}`], {
    hint: "leave private browsing, or allow this site to store data",
  });
}

/** Bytes that the browser would still take from this origin. */
async function available(): Promise<number> {
  const estimate = await globalThis.navigator?.storage?.estimate?.();
  if (estimate?.quota === undefined) return Number.MAX_SAFE_INTEGER;
  return Math.max(0, estimate.quota - (estimate.usage ?? 0) - RESERVE_BYTES);
}
