/** Which orders are taken: a replayed one is not, nor one that this device cannot carry out. */

import { DataError, ReplayedOrder } from "../contracts/errors";
import type { Refuse } from "../contracts/messages";
import type { Records } from "../store/records";
import type { Assignment } from "./assignment";
import type { Crashes } from "./crashes";
import type { Presence } from "./presence";
import type { AgentSettings } from "./settings";
import { SettledWork } from "./settledWork";

export class Admission {
  readonly #settled: SettledWork;

  constructor(
    private readonly settings: AgentSettings,
    records: Records,
    private readonly presence: Presence,
    private readonly crashes: Crashes,
  ) {
    this.#settled = new SettledWork(records);
  }

  /** Remembers the order as one to settle; the refusal when exactly this one is settled. */
  async replayed(taken: Assignment): Promise<Refuse | null> {
    try {
      await this.#settled.check(taken.order);
      return null;
    } catch (error) {
      if (error instanceof ReplayedOrder) return taken.refusal(error.code, error.message);
      throw error;
    }
  }

  /** Why the order cannot be carried out as far as it says so itself, else null. */
  async refusal(taken: Assignment): Promise<Refuse | null> {
    const refusal = this.crashes.known(taken) ?? taken.unsupported();
    if (refusal !== null) return refusal;
    // The owner may have mended the data since.
    const dataError = this.presence.dataError === "" ? "" : await this.presence.dataErrorNow();
    if (dataError !== "") return taken.refusal(new DataError("").code, dataError);
    return taken.overBudget(this.settings);
  }

  /** The assignment is acknowledged: an order for it that comes again is a replay. */
  async settled(assignmentId: string): Promise<void> {
    await this.#settled.settle(assignmentId);
  }
}
