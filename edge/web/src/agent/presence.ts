/** Who this device is and how it is doing: the hello after every connect and the heartbeats in between. */

import { version as release } from "../../package.json";
import type { AgentState, Heartbeat, Hello } from "../contracts/messages";
import type { DeviceProfile } from "../contracts/profile";
import type { DataSource, DataSummary } from "../data/dataSource";
import type { Ready, Trainer } from "../trainer/trainer";
import { BLOCK_BYTES, WINDOW } from "../transport/blocks";
import type { Assignment } from "./assignment";
import { NO_EXAMPLES, toldDataError } from "./discretion";
import type { ProfileSource } from "./profileSource";
import type { AgentSettings } from "./settings";

/** A runtime that could not be loaded is tried again so often. */
const DESCRIBE_S = 10;

/** What the device knows of itself; known once the trainer's runtime is loaded and the data are counted. */
export class Presence {
  #ready: Ready | null = null;
  #data: DataSummary | null = null;
  #describeAt = 0;
  #heartbeatAt = 0;

  constructor(
    private readonly settings: AgentSettings,
    private readonly source: ProfileSource,
    private readonly trainer: Trainer,
    private readonly data: DataSource,
  ) {}

  get isKnown(): boolean {
    return this.#ready !== null && this.#data !== null;
  }

  get runtime(): Ready | null {
    return this.#ready;
  }

  /** Why the local data cannot be used, or empty. */
  get dataError(): string {
    return this.#data?.error ?? "";
  }

  /** Whether it is time to try to describe again. */
  isDue(now: number): boolean {
    return now >= this.#describeAt;
  }

  /** Loads the runtime and counts the data; whether anything of that is news. @throws what the runtime says. */
  async describe(now: number): Promise<boolean> {
    this.#describeAt = now + DESCRIBE_S;
    const [ready, data] = [await this.trainer.ready(), await this.#summary()];
    const isNews =
      !this.isKnown || data.numExamples !== this.#data?.numExamples || data.error !== (this.#data?.error ?? "");
    this.#ready = ready;
    this.#data = data;
    return isNews;
  }

  /** The same, the data counted again. */
  async dataErrorNow(): Promise<string> {
    this.#data = await this.#summary();
    return this.dataError;
  }

  async profile(): Promise<DeviceProfile> {
    const found = await this.source.profile();
    const { device, budgetBytes, threads } = this.settings;
    const ready = this.#ready;
    if (ready === null) return { ...found, device, budget_bytes: budgetBytes };
    const most = [ready.maxThreads, threads].filter((count) => count > 0);
    return {
      ...found,
      device,
      budget_bytes: budgetBytes,
      runtimes: { [ready.runtime]: ready.version },
      trainer_idle_bytes: { [ready.runtime]: ready.idleBytes },
      max_threads: most.length === 0 ? {} : { [ready.runtime]: Math.min(...most) },
    };
  }

  /** Sent after every connect. */
  async hello(state: AgentState, work: Assignment | null): Promise<Hello> {
    const profile = await this.profile();
    return {
      device: this.settings.device,
      agent_version: release,
      profile,
      runtimes: profile.runtimes,
      num_examples: this.#data?.numExamples ?? 0,
      abilities: [],
      data_error: toldDataError(this.dataError),
      state,
      assignment_id: work?.order.assignment_id ?? "",
      block_bytes: BLOCK_BYTES,
      window: WINDOW,
    };
  }

  /** Still here, and how far: at intervals, and at once when there is news; else null. */
  heartbeat(now: number, isNews: boolean, state: AgentState, work: Assignment | null): Heartbeat | null {
    if (!isNews && now < this.#heartbeatAt) return null;
    this.#heartbeatAt = now + this.settings.heartbeatS;
    this.sampleMemory(work);
    return heartbeat(state, work);
  }

  /** Notes what the page holds now for the report of `work`. */
  sampleMemory(work: Assignment | null): void {
    if (work !== null) work.pagePeakBytes = Math.max(work.pagePeakBytes, this.source.heldBytes?.() ?? 0);
  }

  async #summary(): Promise<DataSummary> {
    try {
      const found = await this.data.summary();
      if (found.numExamples > 0 || found.error !== "") return found;
      return { ...found, error: NO_EXAMPLES };
    } catch (error) {
      return { numExamples: 0, labels: {}, error: error instanceof Error ? error.message : String(error) };
    }
  }
}

function heartbeat(state: AgentState, work: Assignment | null): Heartbeat {
  const isWaiting = state === "waiting";
  return {
    state,
    assignment_id: work?.order.assignment_id ?? "",
    step: work?.progress?.step ?? 0,
    total_steps: work?.progress?.totalSteps ?? 0,
    loss: work?.progress?.loss ?? null,
    reason: isWaiting ? (work?.waiting ?? "") : "",
    waiting_for: isWaiting ? (work?.waitingFor ?? "") : "",
  };
}
