/** Brings what an order needs into the store; held back while the owner's conditions want no download. */

import { ApportionError } from "../contracts/errors";
import type { Block, Refuse } from "../contracts/messages";
import { BlockRejected } from "../transport/blocks";
import type { AgentParts } from "./agentEvents";
import type { Assignment } from "./assignment";
import type { FetcherParts, Piece } from "./fetcher";
import type { Gate } from "./gate";
import type { Presence } from "./presence";
import type { AgentSettings } from "./settings";

export interface FetchingCalls extends Pick<FetcherParts, "ask" | "now"> {
  /** Hands a piece for `work` to whoever calls `take`. */
  readonly deliver: (work: Assignment, piece: Piece) => void;
}

/**
 * Every step gives the refusal that ends the work, or null; all is here once the work has its manifest.
 * BlockRejected: a block that cannot belong to what is fetched; nothing changed.
 */
export class Fetching {
  constructor(
    private readonly settings: AgentSettings,
    private readonly parts: AgentParts,
    private readonly presence: Presence,
    private readonly gate: Gate,
    private readonly calls: FetchingCalls,
  ) {}

  /** Begins, or finds that all is here already, which no condition keeps. */
  begin(work: Assignment): Promise<Refuse | null> {
    const { ask, now, deliver } = this.calls;
    const calls = { ask, now, deliver: (piece: Piece) => deliver(work, piece) };
    const isHeld = !this.gate.lets(work, "download");
    return this.#step(work, () => work.startFetch(this.settings, this.parts, calls, isHeld));
  }

  /** A block that came over MQTT, or a piece over HTTPS. */
  take(work: Assignment, part: Block | Piece): Promise<Refuse | null> {
    return this.#step(work, async () => {
      await ("ref" in part ? work.fetch?.piece(part) : work.fetch?.block(part));
    });
  }

  /** Holds back or lets go on, as the conditions are now. */
  reconsider(work: Assignment): Promise<Refuse | null> {
    return this.#step(work, async () => {
      if (this.gate.lets(work, "download")) await work.fetch?.release();
      else work.fetch?.hold();
    });
  }

  async #step(work: Assignment, step: () => Promise<void>): Promise<Refuse | null> {
    try {
      await step();
    } catch (error) {
      if (error instanceof BlockRejected || !(error instanceof ApportionError)) throw error;
      return work.refusal(error.code, error.message);
    }
    const { manifest } = work;
    if (manifest === null) return null;
    work.estimate(manifest, await this.presence.profile(), this.presence.runtime?.idleBytes ?? 0);
    return work.overBudget(this.settings);
  }
}
