/** Downloads into the store, one by one: pieces over HTTPS where there is an address, else blocks over MQTT. */

import { ArtifactCorrupt } from "../contracts/errors";
import type { Block, Get } from "../contracts/messages";
import type { BlobRef } from "../contracts/plan";
import type { BlobStore } from "../store/blobStore";
import { Download, encodedSize } from "../transport/blocks";
import type { RangeRequests } from "../transport/rangeRequests";

/** So many failures in a row, and everything is asked for over MQTT. */
const MOST_FAILURES = 3;

/** What came over HTTPS: bytes of a blob, or the reason why none did. */
export type Piece =
  | { readonly ref: BlobRef; readonly offset: number; readonly data: Uint8Array }
  | { readonly ref: BlobRef; readonly offset: number; readonly failure: string };

export interface FetcherParts {
  readonly store: BlobStore;
  /** Sends one `get`. */
  readonly ask: (get: Get) => void;
  readonly ranges: RangeRequests | null;
  /** Hands a piece to whoever calls `piece`, in the agent's own order of events. */
  readonly deliver: (piece: Piece) => void;
  readonly now: () => number;
  /** Bytes that came in a time without a break. */
  readonly measured?: (bytes: number, seconds: number, method: "https" | "mqtt") => void;
}

export class Fetcher {
  /** Encoded bytes received so far. */
  bytesDown = 0;
  readonly #parts: FetcherParts;
  #wanted: BlobRef[] = [];
  /** Over MQTT; null while a blob comes over HTTPS, or none does. */
  #download: Download | null = null;
  /** Bytes of the present blob that came over HTTPS or were there; null when it comes over MQTT. */
  #offset: number | null = null;
  #abort = new AbortController();
  #failures = 0;
  #isHeld = false;
  readonly #corrupt = new Set<string>();
  #began: { at: number; bytes: number } | null = null;
  #doneBytes = 0;
  #totalBytes = 0;

  constructor(parts: FetcherParts) {
    this.#parts = parts;
  }

  /** Every wanted blob is in the store and verified. */
  get isDone(): boolean {
    return this.#wanted.length === 0;
  }

  /** Nothing is asked for until `release`. */
  get isHeld(): boolean {
    return this.#isHeld;
  }

  /** Bytes that are here of those that were not when they were asked for. */
  get progress(): { fetched: number; total: number } {
    const present = this.#download?.offset ?? this.#offset ?? 0;
    return { fetched: this.#doneBytes + present, total: this.#totalBytes };
  }

  /**
   * Has `refs` in the store: nothing to do for one that is there and whose digest is right.
   *
   * @throws StoreFull; ArtifactCorrupt when a blob arrived with a wrong digest twice.
   */
  async want(refs: readonly BlobRef[]): Promise<void> {
    const { store } = this.#parts;
    for (const ref of refs) {
      if (this.#wanted.some((other) => other.digest === ref.digest)) continue;
      if ((await store.has(ref.digest)) && (await isRight(store, ref.digest))) continue;
      this.#wanted.push(ref);
      this.#totalBytes += encodedSize(ref);
    }
    await this.#next();
  }

  /** Asks for what may be asked for now. */
  tick(now: number): void {
    for (const get of this.#download?.requests(now) ?? []) this.#parts.ask(get);
  }

  /**
   * Takes a block in; blocks of other blobs are ignored.
   *
   * @throws BlockRejected for one that cannot belong to the blob; nothing changed. And as `want`.
   */
  async block(block: Block): Promise<void> {
    const download = this.#download;
    if (download === null || block.digest !== download.ref.digest) return;
    for (const data of download.receive(block, this.#parts.now())) {
      this.bytesDown += data.length;
      await this.#parts.store.append(download.ref, data);
    }
    if (download.isComplete) await this.#complete(download.ref, "mqtt");
    this.tick(this.#parts.now());
  }

  /** Takes a piece in that came over HTTPS. @throws as `want`. */
  async piece(piece: Piece): Promise<void> {
    const ref = this.#wanted[0];
    if (ref === undefined || piece.ref !== ref || piece.offset !== this.#offset) return;
    if ("failure" in piece) {
      this.#failures += 1;
      this.#offset = null;
      this.#began = null;
      this.#download = new Download(ref, piece.offset, this.#parts.now());
      this.tick(this.#parts.now());
      return;
    }
    this.#failures = 0;
    this.bytesDown += piece.data.length;
    this.#offset = piece.offset + piece.data.length;
    // The next one travels while this one is written.
    if (this.#offset < encodedSize(ref)) this.#request(ref, this.#offset);
    await this.#parts.store.append(ref, piece.data);
    if (this.#offset >= encodedSize(ref)) await this.#complete(ref, "https");
  }

  /** Asks again for what was on its way when the connection to the broker broke. */
  reconnected(now: number): void {
    if (this.#download === null) return;
    this.#began = null; // the time without a connection says nothing of the link
    this.#download.reconnected(now);
    this.tick(now);
  }

  /** Asks for nothing from now on, and takes nothing in that is still on its way; what has arrived stays. */
  hold(): void {
    this.#isHeld = true;
    this.#stop();
  }

  /** Goes on where it was held. @throws as `want`. */
  async release(): Promise<void> {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    await this.#next();
  }

  /** Whether `digest` is wanted and not here yet. */
  isFetching(digest: string): boolean {
    return this.#wanted.some((ref) => ref.digest === digest);
  }

  /** Stops; what has arrived stays for a later resume. */
  close(): void {
    this.#wanted = [];
    this.#stop();
  }

  #stop(): void {
    this.#abort.abort();
    this.#abort = new AbortController();
    this.#download = null;
    this.#offset = null;
    this.#began = null;
  }

  async #next(): Promise<void> {
    const { store, ranges, now } = this.#parts;
    while (!this.#isHeld && this.#download === null && this.#offset === null) {
      const ref = this.#wanted[0];
      if (ref === undefined) return;
      const offset = Math.min(await store.received(ref), encodedSize(ref));
      this.#began = { at: now(), bytes: encodedSize(ref) - offset };
      if (ranges !== null && this.#failures < MOST_FAILURES && ref.encoding === "raw" && offset < encodedSize(ref)) {
        this.#offset = offset;
        this.#request(ref, offset);
        return;
      }
      this.#download = new Download(ref, offset, now());
      if (this.#download.isComplete) await this.#complete(ref, "mqtt");
    }
    this.tick(now());
  }

  async #complete(ref: BlobRef, method: "https" | "mqtt"): Promise<void> {
    const { store, measured, now } = this.#parts;
    if (this.#began !== null && this.#began.bytes > 0) {
      measured?.(this.#began.bytes, now() - this.#began.at, method);
    }
    this.#download = null;
    this.#offset = null;
    try {
      await store.complete(ref);
    } catch (error) {
      if (!(error instanceof ArtifactCorrupt) || this.#corrupt.has(ref.digest)) throw error;
      this.#corrupt.add(ref.digest);
      await this.#next();
      return;
    }
    this.#wanted.shift();
    this.#doneBytes += encodedSize(ref);
    await this.#next();
  }

  #request(ref: BlobRef, offset: number): void {
    const { ranges, deliver } = this.#parts;
    if (ranges === null) return;
    const { signal } = this.#abort;
    const length = Math.min(ranges.pieceBytes, encodedSize(ref) - offset);
    ranges.piece(ref.digest, offset, length, encodedSize(ref), signal).then(
      (data) => {
        if (!signal.aborted) deliver({ ref, offset, data });
      },
      (error: unknown) => {
        if (!signal.aborted) deliver({ ref, offset, failure: String(error) });
      },
    );
  }
}

/** Reads the blob through; one whose bytes have another digest is dropped by the store. */
async function isRight(store: BlobStore, digest: string): Promise<boolean> {
  try {
    await store.read(digest);
    return true;
  } catch (error) {
    if (error instanceof ArtifactCorrupt) return false;
    throw error;
  }
}
