/** Everything one order needs: first the manifest, then the files it lists, then weights and constants. */

import { DeviceRefused } from "../contracts/errors";
import { type ArtifactManifest, parseManifest } from "../contracts/manifest";
import type { Block } from "../contracts/messages";
import type { BlobRef, WorkOrder } from "../contracts/plan";
import { Fetcher, type FetcherParts, type Piece } from "./fetcher";
import { orderDigests, orderRefs } from "./finishedWork";
import { type OrderTrust, RUNTIMES } from "./settings";

export class OrderFetch {
  readonly #fetcher: Fetcher;
  #manifest: ArtifactManifest | null = null;

  constructor(
    private readonly order: WorkOrder,
    private readonly parts: FetcherParts,
    private readonly trust: OrderTrust | null,
  ) {
    this.#fetcher = new Fetcher(parts);
  }

  get bytesDown(): number {
    return this.#fetcher.bytesDown;
  }

  get progress(): { fetched: number; total: number } {
    return this.#fetcher.progress;
  }

  /** The manifest once it and all other blobs are in the store, verified; before that null. */
  get completeManifest(): ArtifactManifest | null {
    return this.#fetcher.isDone ? this.#manifest : null;
  }

  /**
   * Begins, or finds that all is there already.
   *
   * @throws StoreFull, ArtifactCorrupt (a blob arrived with a wrong digest twice), SignatureRejected (no trusted key
   * has signed the manifest), MessageRejected (it cannot be used), DeviceRefused (it is for another runtime).
   */
  async start(): Promise<void> {
    await this.parts.store.pin(orderDigests(this.order));
    await this.#fetcher.want([this.order.artifact]);
    await this.#goOn();
  }

  /** @throws BlockRejected for a block that cannot belong to the blob, nothing changed; and as `start`. */
  async block(block: Block): Promise<void> {
    await this.#fetcher.block(block);
    await this.#goOn();
  }

  /** @throws as `start`. */
  async piece(piece: Piece): Promise<void> {
    await this.#fetcher.piece(piece);
    await this.#goOn();
  }

  tick(now: number): void {
    this.#fetcher.tick(now);
  }

  reconnected(now: number): void {
    this.#fetcher.reconnected(now);
  }

  get isHeld(): boolean {
    return this.#fetcher.isHeld;
  }

  hold(): void {
    this.#fetcher.hold();
  }

  /** @throws as `start`. */
  async release(): Promise<void> {
    await this.#fetcher.release();
    await this.#goOn();
  }

  isFetching(digest: string): boolean {
    return this.#fetcher.isFetching(digest);
  }

  close(): void {
    this.#fetcher.close();
  }

  async #goOn(): Promise<void> {
    if (this.#manifest !== null || !this.#fetcher.isDone) return;
    const data = await this.parts.store.read(this.order.artifact.digest);
    // Before anything in it is read.
    await this.trust?.checkManifest(data, this.order.artifact_signature);
    const manifest = parseManifest(data);
    if (!RUNTIMES.includes(manifest.runtime)) {
      throw new DeviceRefused(
        `artifact is for runtime '${manifest.runtime}', this device trains with ${RUNTIMES.join(" or ")}; ` +
          "order another artifact",
      );
    }
    this.#manifest = manifest;
    const files = manifest.files.map(
      (file): BlobRef => ({ digest: file.sha256, size: file.size, encoding: "raw", encoded_size: file.size }),
    );
    await this.parts.store.pin([...orderDigests(this.order), ...files.map((file) => file.digest)]);
    await this.#fetcher.want([...files, ...orderRefs(this.order).slice(1)]);
  }
}
