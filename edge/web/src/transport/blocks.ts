/**
 * Device-paced bulk transfer as two state machines without I/O: bytes come and go through their caller.
 *
 * A device asks for blocks (download) or waits for a grant (upload), so nobody ever pushes more at a broker than the
 * window. Blocks travel at QoS 0: what is lost is asked for again. Transfers resume at an offset; the SHA-256 of the
 * whole is checked by whoever stores it. Times are seconds on the caller's monotonic clock.
 */

import { MessageRejected } from "../contracts/errors";
import type { Block, Get, Grant } from "../contracts/messages";
import type { BlobRef } from "../contracts/plan";

/** Measured: a Mosquitto 2.0.11 delivers larger messages to WebSocket subscribers at 80 to 700 KB/s. */
export const BLOCK_BYTES = 16_384;
export const WINDOW = 4;
const MOST_PUT_BYTES = 262_144;
/** Blocks that a grant is followed for, whatever it says: nobody signs one, and each block is in memory until it left. */
const MOST_WINDOW = 16;
const FIRST_TIMEOUT_S = 2;
const LAST_TIMEOUT_S = 30;

/** A block or grant that cannot belong to the transfer; the transfer itself is unharmed. */
export class BlockRejected extends MessageRejected {}

/** Bytes of the blob as they travel. */
export function encodedSize(ref: BlobRef): number {
  return ref.encoded_size || ref.size;
}

/** Says when a transfer made no progress for too long; waits double with every stall and adapt to slow links. */
export class StallTimer {
  #since: number;
  #intervalS = 0;
  #timeoutS = FIRST_TIMEOUT_S;

  constructor(now: number) {
    this.#since = now;
  }

  /** Something arrived. */
  progress(now: number): void {
    this.#intervalS = 0.5 * this.#intervalS + 0.5 * (now - this.#since);
    this.#since = now;
    // A slow link delivers slower than the first timeout: asking again would only send every block twice.
    this.#timeoutS = Math.min(LAST_TIMEOUT_S, Math.max(FIRST_TIMEOUT_S, 4 * this.#intervalS));
  }

  /** True once per stall; the next wait is twice as long. */
  isStalled(now: number): boolean {
    if (now < this.#since + this.#timeoutS) return false;
    this.#since = now;
    this.#timeoutS = Math.min(LAST_TIMEOUT_S, 2 * this.#timeoutS);
    return true;
  }

  /** A new connection: wait the first timeout from now. */
  restart(now: number): void {
    this.#since = now;
    this.#timeoutS = FIRST_TIMEOUT_S;
  }
}

/** One blob coming in, its encoded bytes given out in order. */
export class Download {
  readonly ref: BlobRef;
  readonly total: number;
  /** Bytes given out, and held from an earlier attempt. */
  offset: number;
  #asked: number;
  #early = new Map<number, Uint8Array>();
  readonly #timer: StallTimer;

  constructor(
    ref: BlobRef,
    offset: number,
    now: number,
    readonly blockBytes: number = BLOCK_BYTES,
    readonly window: number = WINDOW,
  ) {
    this.ref = ref;
    this.total = encodedSize(ref);
    this.offset = Math.min(offset, this.total);
    this.#asked = this.offset;
    this.#timer = new StallTimer(now);
  }

  get isComplete(): boolean {
    return this.offset >= this.total;
  }

  /** What to ask for now: new blocks within the window, or after a stall the missing ones again. */
  requests(now: number): Get[] {
    if (this.#timer.isStalled(now)) this.#asked = this.offset;
    const gets: Get[] = [];
    while (this.#asked < Math.min(this.total, this.offset + this.window * this.blockBytes)) {
      const length = Math.min(this.blockBytes, this.total - this.#asked);
      if (!this.#early.has(this.#asked)) {
        gets.push({ digest: this.ref.digest, encoding: this.ref.encoding, offset: this.#asked, length });
      }
      this.#asked += length;
    }
    return gets;
  }

  /**
   * The bytes that continue what was given out before: none, this block, or it and early ones after it.
   *
   * @throws BlockRejected for a block of another size or place than can have been asked for.
   */
  receive(block: Block, now: number): Uint8Array[] {
    const short = this.ref.digest.slice(0, 12);
    if (block.total !== this.total) {
      throw new BlockRejected(
        `blob ${short}: block says ${block.total} bytes in all, ${this.total} ordered; order again`,
      );
    }
    const end = block.offset + block.data.length;
    if (block.data.length === 0 || block.offset < 0 || block.data.length > this.blockBytes || end > this.total) {
      throw new BlockRejected(
        `blob ${short}: block [${block.offset}, ${end}) is outside ${this.total} bytes ` +
          `or longer than ${this.blockBytes}`,
      );
    }
    if (block.offset < this.offset || this.#early.has(block.offset)) return [];
    if (block.offset > this.offset + this.window * this.blockBytes) return [];
    // More than was asked for: pieces that overlap, which nobody honest sends.
    const early = [...this.#early.values()].reduce((sum, data) => sum + data.length, 0);
    if (block.offset > this.offset && early + block.data.length > this.window * this.blockBytes) return [];
    this.#early.set(block.offset, block.data);
    this.#timer.progress(now);
    const ready: Uint8Array[] = [];
    for (let data = this.#early.get(this.offset); data !== undefined; data = this.#early.get(this.offset)) {
      this.#early.delete(this.offset);
      ready.push(data);
      this.offset += data.length;
    }
    this.#asked = Math.max(this.#asked, this.offset);
    for (const start of this.#early.keys()) if (start <= this.offset) this.#early.delete(start);
    return ready;
  }

  /** Everything asked for and not arrived is asked for again. */
  reconnected(now: number): void {
    this.#asked = this.offset;
    this.#timer.restart(now);
  }
}

/** Where a block of the update begins, and its length. */
export interface Span {
  readonly offset: number;
  readonly length: number;
}

/**
 * One update going out; sends only what is granted.
 *
 * A grant confirms everything before its offset. Grants of a transfer rise; one that answers an offer may also fall
 * back, because then the coordinator said what it really holds.
 */
export class Upload {
  readonly total: number;
  confirmed = 0;
  #blockBytes = BLOCK_BYTES;
  #limit = 0;
  #sent = 0;
  #repeated = -1;
  /** Grants that come again up to here tell of no loss. */
  #doubtfulTo = -1;
  #isOfferOpen = true;
  /** Offers made since the last one that was answered. */
  #offers = 0;
  /** What was on its way is lost with its connection. */
  #isBroken = false;
  readonly #timer: StallTimer;

  constructor(ref: BlobRef, now: number) {
    this.total = encodedSize(ref);
    this.#timer = new StallTimer(now);
  }

  /** The coordinator has every byte. */
  get isComplete(): boolean {
    return this.confirmed >= this.total && !this.#isOfferOpen;
  }

  /** No grant has answered the last offer yet. */
  get isOfferOpen(): boolean {
    return this.#isOfferOpen;
  }

  /** An offer was sent: the next grant decides where to go on. */
  offered(): void {
    this.#isOfferOpen = true;
    this.#offers += 1;
  }

  /** @throws BlockRejected for an offset, block size or window that makes no sense. */
  granted(grant: Grant, now: number): void {
    if (!(grant.offset >= 0 && grant.offset <= this.total && grant.block_bytes > 0 && grant.window > 0)) {
      throw new BlockRejected(
        `grant at ${grant.offset} of ${this.total} bytes, ${grant.window} blocks of ${grant.block_bytes}: ` +
          "offset must lie in the update, sizes must be positive",
      );
    }
    if (this.#isOfferOpen) {
      this.#answered(grant.offset);
    } else if (grant.offset < this.confirmed) {
      if (!this.isComplete) return;
      // All had arrived, and it was not what was announced: it is wanted again from there.
      this.#sent = grant.offset;
    } else if (
      grant.offset === this.confirmed &&
      grant.offset > this.#doubtfulTo &&
      grant.offset !== this.#sent &&
      grant.offset !== this.#repeated
    ) {
      // Said again instead of risen: the block that begins there was lost, what followed it was ignored. What of the
      // window is there all the same is answered with grants that do not rise: they are of this repetition.
      this.#doubtfulTo = this.#sent;
      this.#sent = this.#repeated = grant.offset;
    }
    this.confirmed = grant.offset;
    this.#sent = Math.max(this.#sent, grant.offset);
    this.#blockBytes = Math.min(grant.block_bytes, MOST_PUT_BYTES);
    this.#limit = grant.offset + Math.min(grant.window, MOST_WINDOW) * this.#blockBytes;
    this.#timer.progress(now);
  }

  /**
   * An offer was open, and a grant came. One that rises is for a block that was on its way: nothing is lost, the other
   * side or the link was slow, and to send it all again would make them slower. The answer itself is still to come, as
   * it may be after a broken connection: a block that went through before is granted over the new one.
   */
  #answered(offset: number): void {
    const isAlive = !this.#isBroken && this.#sent > this.confirmed && offset > this.confirmed;
    if (isAlive || this.#isBroken || this.#offers > 1 || this.#sent > offset) {
      this.#doubtfulTo = Math.max(this.#sent, offset);
    }
    if (!isAlive) this.#sent = offset;
    this.#isOfferOpen = this.#isBroken = false;
    this.#offers = 0;
  }

  /** The blocks to send now; each is given once. */
  sends(): Span[] {
    const spans: Span[] = [];
    while (!this.#isOfferOpen && this.#sent < Math.min(this.total, this.#limit)) {
      const length = Math.min(this.#blockBytes, this.total - this.#sent);
      spans.push({ offset: this.#sent, length });
      this.#sent += length;
    }
    return spans;
  }

  /** No grant for too long: true once per stall, from then on an offer is open, and to be made. */
  isStalled(now: number): boolean {
    const isStalled = !this.isComplete && this.#timer.isStalled(now);
    this.#isOfferOpen ||= isStalled;
    return isStalled;
  }

  /** Sent blocks may be lost: offer again. */
  reconnected(now: number): void {
    this.#isOfferOpen = this.#isBroken = true;
    this.#offers = 0;
    this.#timer.restart(now);
  }
}
