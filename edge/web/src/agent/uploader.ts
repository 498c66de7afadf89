/** Sends a finished update: offer, wait for a grant, blocks within its window, and the report when all has arrived. */

import { messageId } from "../contracts/envelope";
import type { Grant } from "../contracts/messages";
import type { TrainReport } from "../contracts/report";
import { Upload } from "../transport/blocks";
import type { Send } from "./outbox";

/** An offer without a grant and a report without an acknowledgement are repeated this often. */
const REPEAT_S = 5;

export class Uploader {
  readonly #upload: Upload;
  readonly #reportId = messageId();
  #repeatAt: number;
  /** Blocks and the offers that lead to them wait; a report, which is small, does not. */
  isHeld = false;

  constructor(
    private readonly report: TrainReport,
    private readonly update: Uint8Array,
    private readonly send: Send,
    now: number,
  ) {
    this.#upload = new Upload(report.update, now);
    this.#repeatAt = now;
  }

  /** All of the update has arrived. */
  get isComplete(): boolean {
    return this.#upload.isComplete;
  }

  /** Offers, sends blocks, or reports, whichever is due. */
  tick(now: number): void {
    if (this.isHeld && !this.isComplete) return;
    if (this.#upload.isStalled(now)) this.#repeatAt = now;
    if (this.#upload.isComplete) {
      if (now >= this.#repeatAt) {
        this.#repeatAt = now + REPEAT_S;
        this.send("report", this.report, 1, this.#reportId);
      }
    } else if (this.#upload.isOfferOpen && now >= this.#repeatAt) {
      this.#repeatAt = now + REPEAT_S;
      this.#upload.offered();
      this.send("offer", { assignment_id: this.report.assignment_id, update: this.report.update });
    }
    this.#put();
  }

  /** Goes on from a grant; those for other updates are ignored. @throws MessageRejected for one without sense. */
  granted(grant: Grant, now: number): void {
    if (grant.digest !== this.report.update.digest || grant.assignment_id !== this.report.assignment_id) return;
    const wasComplete = this.#upload.isComplete;
    this.#upload.granted(grant, now);
    if (this.#upload.isComplete && !wasComplete) this.#repeatAt = now;
    this.tick(now);
  }

  /** Says it again at once: the order came again, so the coordinator does not have the report. */
  again(now: number): void {
    this.#repeatAt = now;
    this.tick(now);
  }

  /** Offers again at once: what was on its way may be lost. */
  reconnected(now: number): void {
    this.#upload.reconnected(now);
    this.again(now);
  }

  #put(): void {
    const { assignment_id } = this.report;
    for (const { offset, length } of this.#upload.sends()) {
      const data = this.update.subarray(offset, offset + length);
      // QoS 0: a lost block shows as a stall and is sent again; the broker keeps no copy.
      this.send("put", { assignment_id, digest: this.report.update.digest, offset, data }, 0);
    }
  }
}
