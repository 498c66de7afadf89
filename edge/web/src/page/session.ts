/** What runs behind the page of a device that has joined: its stores, its facts, and the agent while it takes part. */

import { DEFAULT_SETTINGS } from "../agent/settings";
import { type RunningAgent, type StartOptions, startAgent } from "../agent/startAgent";
import type { AgentStatus } from "../agent/status";
import { DataStore } from "../data/dataStore";
import type { FileStore } from "../store/fileStore";
import { openSharedStore } from "../store/openStore";
import type { Records } from "../store/records";
import { WorkerTrainer } from "../trainer/workerTrainer";
import { LAST_SEEN, type LastSeen, lastSeen, newProblem, trafficOf, trainingSince } from "./agentView";
import { BrowserDevice } from "./browserDevice";
import type { OwnerConditions, TrainingState } from "./model";
import type { PageStore } from "./pageStore";
import { PhoneExamples } from "./phoneExamples";

const { store: STORE, data: DATA } = DEFAULT_SETTINGS;

export async function openSession(page: PageStore, records: Records, conditions: OwnerConditions): Promise<Session> {
  const store = await openSharedStore(STORE);
  const device = new BrowserDevice(records, store, conditions, (facts) => {
    page.change({ device: { ...page.state.device, ...facts } });
  });
  await device.showTraits();
  const session = new Session(page, records, store, await DataStore.open(DATA), device);
  await session.examples.refresh();
  await session.showUsage();
  return session;
}

export class Session {
  readonly examples: PhoneExamples;
  #agent: RunningAgent | null = null;
  #shownErrorAt = Date.now();

  constructor(
    private readonly page: PageStore,
    private readonly records: Records,
    private readonly store: FileStore,
    private readonly data: DataStore,
    private readonly device: BrowserDevice,
  ) {
    this.examples = new PhoneExamples(data, (found) => {
      page.change({ data: { ...page.state.data, ...found } });
      this.#agent?.dataChanged();
    });
  }

  /** Takes part until `stop`; with another tab at it already, says so and does when that one is closed. */
  async start(chosen: NonNullable<StartOptions["chosen"]>): Promise<void> {
    if (this.#agent !== null) return;
    const { training, device } = this.page.state;
    let before = training;
    const agent = await startAgent({
      records: this.records,
      store: this.store,
      data: this.data,
      trainer: new WorkerTrainer(),
      profile: this.device.profile(device.budgetBytes),
      conditions: this.device.conditions,
      chosen: async () => {
        // The tab before this one may have done rounds.
        const isNext = this.page.state.training.activity === "elsewhere";
        if (isNext) before = { ...before, ...(await this.records.get<LastSeen>(LAST_SEEN)) };
        return chosen();
      },
    });
    this.#agent = agent;
    const unsubscribe = agent.status.subscribe((status) => this.#follow(before, status));
    this.#follow(before, agent.status.current);
    void agent.ended.then(() => {
      unsubscribe();
      this.device.setTraining(false);
      if (this.#agent === agent) this.#agent = null;
    });
  }

  /** Says goodbye and ends the trainer; what is done and not acknowledged is kept for the next start. */
  async stop(): Promise<void> {
    await this.#agent?.stop();
    this.#show({ activity: "stopped", connection: "connecting" });
  }

  setConditions(conditions: OwnerConditions): void {
    this.device.setConditions(conditions);
  }

  async clearCache(): Promise<void> {
    await this.store.clear();
    await this.showUsage();
  }

  /** Examples and models go. */
  async erase(): Promise<void> {
    await this.examples.clear();
    await this.clearCache();
  }

  async showUsage(): Promise<void> {
    const { bytes, quota } = await this.store.usage();
    this.page.change({ device: { ...this.page.state.device, storageBytes: bytes, storageQuota: quota } });
  }

  /** @param atStart what the page showed when this agent started */
  #follow(atStart: TrainingState, status: AgentStatus): void {
    // Whoever has left need not see the agent's end, nor what joins next the rounds of what was left.
    if (this.page.state.phase !== "joined") return;
    const before = this.page.state.training.activity;
    const shown = trainingSince(atStart, status, navigator.onLine);
    this.page.change({ training: shown, traffic: trafficOf(status) });
    const problem = newProblem(status.lastError, this.#shownErrorAt);
    if (problem !== null && status.lastError !== null) {
      this.#shownErrorAt = status.lastError.at;
      this.page.change({ problem });
    }
    if (before !== shown.activity) {
      // The tab before this one may have added examples.
      if (before === "elsewhere") void this.examples.refresh();
      this.device.setTraining(shown.activity === "training");
      void this.showUsage();
      // A tab may be ended at any time: what it showed is kept at every change, not when it ends.
      void this.records.put(LAST_SEEN, lastSeen(this.page.state));
    }
  }

  #show(change: Partial<PageStore["state"]["training"]>): void {
    this.page.change({ training: { ...this.page.state.training, ...change } });
  }
}
