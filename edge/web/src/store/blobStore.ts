/** Blobs by digest on this device: what was fetched once is not fetched again. Both page and worker open it. */

import type { BlobRef } from "../contracts/plan";

export interface BlobStore {
  /** Whether the whole blob is here; its digest was checked when it was completed. */
  has(digest: string): Promise<boolean>;
  /** The blob's bytes, checked against its digest anew; ArtifactCorrupt (and the blob dropped) where they differ. */
  read(digest: string): Promise<Uint8Array>;
  /** Encoded bytes of `ref` that have arrived so far and were kept. */
  received(ref: BlobRef): Promise<number>;
  /** Adds bytes that come right after those received; StoreFull when there is no room. */
  append(ref: BlobRef, data: Uint8Array): Promise<void>;
  /** Makes the whole of what was received the blob; ArtifactCorrupt (and the bytes dropped) on another digest. */
  complete(ref: BlobRef): Promise<void>;
  /** These are needed now; all others may go, the longest unused first, when room is wanted. */
  pin(digests: readonly string[]): Promise<void>;
  usage(): Promise<{ readonly bytes: number; readonly quota: number; readonly blobs: number }>;
  delete(digest: string): Promise<void>;
  clear(): Promise<void>;
}
