/** What an artifact costs by its manifest, for the measurements that are told with it. */

import { type Cost, parseManifest } from "../contracts/manifest";
import type { BlobStore } from "../store/blobStore";

/** Of the artifact with that digest; null when it is no longer here. */
export async function artifactCost(store: BlobStore, digest: string): Promise<Cost | null> {
  if (!(await store.has(digest))) return null;
  return parseManifest(await store.read(digest)).cost;
}
