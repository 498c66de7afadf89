/** What runs behind the page of a device that has joined: its stores, its facts, and the agent while it takes part. */

import { Agent } from "../agent/agent";
import { holdDevice } from "../agent/deviceLock";
import { farewell } from "../agent/outbox";
import { DEFAULT_SETTINGS } from "../agent/settings";
import { deviceFilters } from "../contracts/topics";
import { DataStore } from "../data/dataStore";
import { enrolledKey, enrolment } from "../identity/enrolment";
import { messageSigner } from "../identity/messageSigner";
import { Trust } from "../identity/trust";
import type { FileStore } from "../store/fileStore";
import { openStore } from "../store/openStore";
import type { Records } from "../store/records";
import { WorkerTrainer } from "../trainer/workerTrainer";
import { MqttTransport } from "../transport/mqtt";
import { LAST_SEEN, lastSeen, newProblem, trafficOf, trainingOf } from "./agentView";
import { BrowserDevice } from "./browserDevice";
import type { OwnerConditions } from "./model";
import type { PageStore } from "./pageStore";
import { PhoneExamples } from "./phoneExamples";
import { problemOf } from "./problem";

const { store: STORE, data: DATA } = DEFAULT_SETTINGS;

export async function openSession(page: PageStore, records: Records, conditions: OwnerConditions): Promise<Session> {
  const opened = await openStore(STORE);
  const device = new BrowserDevice(records, opened.store, conditions, (facts) => {
    page.change({ device: { ...page.state.device, ...facts } });
  });
  await device.showTraits();
  const session = new Session(page, records, opened.store, await DataStore.open(DATA), device);
  await session.examples.refresh();
  await session.showUsage();
  return session;
}

export class Session {
  readonly examples: PhoneExamples;
  #agent: Agent | null = null;
  #running: Promise<void> = Promise.resolve();
  /** Ends the wait for another tab; null while nothing is to be run. */
  #waiting: AbortController | null = null;
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
  async start(budgetBytes: number, threads: number): Promise<void> {
    if (this.#waiting !== null) return;
    const enrolled = await enrolment(this.records);
    if (enrolled === null) return;
    const waiting = new AbortController();
    this.#waiting = waiting;
    // Resolved when it is known which tab it is: what follows must not wait for another tab to be closed.
    await new Promise<void>((resolve) => {
      const elsewhere = () => {
        this.#show({ activity: "elsewhere" });
        resolve();
      };
      this.#running = holdDevice(enrolled.device, elsewhere, waiting.signal)
        .then(async (release) => {
          try {
            const agent = await this.#makeAgent(budgetBytes, threads);
            resolve();
            if (agent !== null && !waiting.signal.aborted) await this.#run(agent);
          } finally {
            release();
          }
        })
        .catch((error) => {
          if (!waiting.signal.aborted) this.page.change({ problem: problemOf(error) });
        })
        .finally(() => {
          if (this.#waiting === waiting) this.#waiting = null;
          resolve();
        });
    });
  }

  /** Of what is stored now: the tab before this one may have left, or added examples. */
  async #makeAgent(budgetBytes: number, threads: number): Promise<Agent | null> {
    const [enrolled, key] = await Promise.all([enrolment(this.records), enrolledKey(this.records)]);
    if (enrolled === null || key === null) return null;
    await this.examples.refresh();
    const { federation, device } = enrolled;
    const sign = messageSigner(key, federation, device);
    const transport = new MqttTransport({
      url: enrolled.broker,
      device,
      password: enrolled.password,
      subscriptions: deviceFilters(federation, device),
      will: await farewell(federation, device, "connection lost", sign),
    });
    const settings = {
      ...DEFAULT_SETTINGS,
      federation,
      device,
      budgetBytes,
      threads,
      trust: Trust.fromPem(enrolled.signing_public),
    };
    return new Agent(settings, {
      transport,
      store: this.store,
      records: this.records,
      trainer: new WorkerTrainer(),
      data: this.data,
      profile: this.device.profile(device, budgetBytes),
      conditions: this.device.conditions,
      sign,
    });
  }

  async #run(agent: Agent): Promise<void> {
    this.#agent = agent;
    const unsubscribe = agent.status.subscribe((status) => this.#follow(status));
    this.#follow(agent.status.current);
    try {
      await agent.run();
    } finally {
      unsubscribe();
      this.device.setTraining(false);
      this.#agent = null;
    }
  }

  /** Says goodbye and ends the trainer; what is done and not acknowledged is kept for the next start. */
  async stop(): Promise<void> {
    this.#waiting?.abort();
    this.#agent?.stop();
    await this.#running;
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

  #follow(status: Agent["status"]["current"]): void {
    const before = this.page.state.training.activity;
    // After a start nothing is known yet; what was seen last stays on the page until there is something new.
    const isFresh = status.totalSteps === 0 && status.round === null;
    const shown = trainingOf(status, navigator.onLine);
    const { round, step, totalSteps, losses, stepMs, usedBytes } = this.page.state.training;
    this.page.change({
      training: isFresh ? { ...shown, round, step, totalSteps, losses, stepMs, usedBytes } : shown,
      traffic: trafficOf(status),
    });
    const problem = newProblem(status.lastError, this.#shownErrorAt);
    if (problem !== null && status.lastError !== null) {
      this.#shownErrorAt = status.lastError.at;
      this.page.change({ problem });
    }
    if (before !== shown.activity) {
      this.device.setTraining(shown.activity === "training");
      void this.showUsage();
      // A tab may be ended at any time: what it showed is kept at every change, not when it ends.
      if (this.page.state.phase === "joined") void this.records.put(LAST_SEEN, lastSeen(this.page.state));
    }
  }

  #show(change: Partial<PageStore["state"]["training"]>): void {
    this.page.change({ training: { ...this.page.state.training, ...change } });
  }
}
