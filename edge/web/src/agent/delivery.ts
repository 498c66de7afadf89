/** From a training's end to the acknowledgement: the update is kept and offered; a killed tab goes on there. */

import type { Trained } from "../trainer/trainer";
import type { AgentParts } from "./agentEvents";
import { Assignment } from "./assignment";
import { FinishedWork } from "./finishedWork";
import type { Gate } from "./gate";
import type { Send } from "./outbox";
import type { Presence } from "./presence";
import { measuredOf } from "./profileSource";
import type { StatusBoard } from "./status";
import { Uploader } from "./uploader";

export class Delivery {
  readonly #finished: FinishedWork;

  constructor(
    private readonly parts: AgentParts,
    private readonly presence: Presence,
    private readonly gate: Gate,
    private readonly status: StatusBoard,
    private readonly send: Send,
    private readonly now: () => number,
  ) {
    this.#finished = new FinishedWork(parts.records, parts.store);
  }

  /** What an earlier page has trained and nobody has acknowledged, on its way again. */
  async restore(): Promise<Assignment | null> {
    const found = await this.#finished.load();
    if (found === null) return null;
    const { order, report } = found.record;
    const work = await Assignment.taken(order, this.now());
    work.uploader = new Uploader(report, found.update, this.send, this.now());
    return work;
  }

  async begin(work: Assignment, trained: Trained): Promise<void> {
    const { order, manifest } = work;
    this.presence.sampleMemory(work);
    const report = await work.report(trained, await this.presence.profile(), this.now());
    this.status.set({ stepMs: trained.stepMsP50, peakBytes: trained.peakBytes });
    // A device without room for the update sends it all the same: it is lost with the tab, no more.
    await this.#finished.save({ order, report }, trained.update).catch((error) => this.status.tell(error));
    work.uploader = new Uploader(report, trained.update, this.send, this.now());
    if (manifest === null) return;
    await this.parts.profile.measured(measuredOf(order, manifest, trained)).catch((error) => this.status.tell(error));
  }

  /** Holds the update back or lets it go on, as the conditions are now; whether it is held. */
  reconsider(work: Assignment): boolean {
    const { uploader } = work;
    if (uploader === null) return false;
    uploader.isHeld = !uploader.isComplete && !this.gate.lets(work, "upload");
    return uploader.isHeld;
  }

  async forget(work: Assignment): Promise<void> {
    await this.#finished.forget(work.order.assignment_id);
  }
}
