// An agent with everything around it by script: clock, trainer, data, conditions, and a coordinator on a broker.

import { Agent } from "../../src/agent/agent";
import type { AgentParts } from "../../src/agent/agentEvents";
import type { Clock } from "../../src/agent/clock";
import type { Asked, Conditions, Unmet } from "../../src/agent/conditions";
import { farewell } from "../../src/agent/outbox";
import type { Measured } from "../../src/agent/profileSource";
import { type AgentSettings, DEFAULT_SETTINGS } from "../../src/agent/settings";
import { DeviceProfile } from "../../src/contracts/profile";
import { deviceFilters } from "../../src/contracts/topics";
import type { DataSource, DataSummary } from "../../src/data/dataSource";
import { MemoryFiles, MemoryRecords, MemoryStore } from "../../src/store/memoryStore";
import type { Progress, Ready, Trained, Trainer, TrainRequest } from "../../src/trainer/trainer";
import { InMemoryBroker, InMemoryTransport } from "../../src/transport/inMemory";
import { Coordinator, DEVICE, FEDERATION, UPDATE } from "./coordinator";

export class ManualClock implements Clock {
  time = 100;
  readonly #ticks = new Set<() => void>();

  now(): number {
    return this.time;
  }

  every(_seconds: number, tick: () => void): () => void {
    this.#ticks.add(tick);
    return () => this.#ticks.delete(tick);
  }

  advance(seconds: number): void {
    this.time += seconds;
    for (const tick of this.#ticks) tick();
  }
}

/** Trains when told to: `finish`, `fail`, or at once where `isInstant`. */
export class ScriptedTrainer implements Trainer {
  readonly requests: TrainRequest[] = [];
  isInstant = true;
  /** Errors of the next trainings, in order. */
  failures: unknown[] = [];
  isPaused = false;
  kills = 0;
  #pending: { resolve: (trained: Trained) => void; reject: (error: unknown) => void } | null = null;
  #onProgress: (progress: Progress) => void = () => {};

  get isTraining(): boolean {
    return this.#pending !== null;
  }

  async ready(): Promise<Ready> {
    return { runtime: "onnxruntime_web", version: "1.30.0", idleBytes: 30_000_000, maxThreads: 2 };
  }

  train(request: TrainRequest, onProgress: (progress: Progress) => void): Promise<Trained> {
    this.requests.push(request);
    this.#onProgress = onProgress;
    const failure = this.failures.shift();
    if (failure !== undefined) return Promise.reject(failure);
    return new Promise((resolve, reject) => {
      this.#pending = { resolve, reject };
      if (this.isInstant) {
        this.progress(1);
        this.finish();
      }
    });
  }

  progress(step: number): void {
    this.#onProgress({ step, totalSteps: 4, loss: 1 / step });
  }

  finish(): void {
    this.#pending?.resolve({
      numExamples: 16,
      steps: 4,
      loss: 0.5,
      metrics: { accuracy: 0.75 },
      stepMsP50: 12,
      stepMsP95: 15,
      peakBytes: 40_000_000,
      idleBytes: 30_000_000,
      threads: 1,
      labels: [0, 1],
      update: UPDATE.slice(),
    });
    this.#pending = null;
  }

  pause(): void {
    this.isPaused = true;
  }

  resume(): void {
    this.isPaused = false;
  }

  kill(): void {
    this.kills += 1;
    this.#pending?.reject(new Error("killed"));
    this.#pending = null;
  }
}

export class ScriptedConditions implements Conditions {
  #found: Unmet | null = null;
  readonly #listeners = new Set<() => void>();

  /** As a device's own: a battery holds downloads back as well, a metered link all that is large. */
  unmet({ purpose }: Pick<Asked, "purpose">): Unmet | null {
    const waitingFor = this.#found?.waitingFor;
    if (purpose === "training" || waitingFor === "network") return this.#found;
    return purpose === "download" && waitingFor === "battery" ? this.#found : null;
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  become(found: Unmet | null): void {
    this.#found = found;
    for (const listener of this.#listeners) listener();
  }
}

export class ScriptedData implements DataSource {
  found: DataSummary = { numExamples: 16, labels: { a: 8, b: 8 }, error: "" };

  async summary(): Promise<DataSummary> {
    return this.found;
  }

  async load(): Promise<never> {
    throw new Error("the trainer's business");
  }
}

export class Rig {
  readonly broker = new InMemoryBroker();
  clock = new ManualClock();
  readonly files = new MemoryFiles();
  readonly records = new MemoryRecords();
  readonly data = new ScriptedData();
  readonly conditions = new ScriptedConditions();
  readonly measured: Measured[] = [];
  heldBytes: () => number | null = () => null;
  coordinator = new Coordinator(this.broker);
  trainer = new ScriptedTrainer();
  agent!: Agent;
  #transport: InMemoryTransport | null = null;
  #running: Promise<void> = Promise.resolve();

  /** A new agent on the same storage, connected and having said hello. */
  async start(settings: Partial<AgentSettings> = {}, parts: Partial<AgentParts> = {}): Promise<this> {
    const will = await farewell(FEDERATION, DEVICE, "connection lost", parts.sign);
    this.#transport = new InMemoryTransport(this.broker, deviceFilters(FEDERATION, DEVICE), will);
    this.agent = new Agent(
      { ...DEFAULT_SETTINGS, federation: FEDERATION, device: DEVICE, ...settings },
      {
        transport: this.#transport,
        store: new MemoryStore({ pieceBytes: 16_384 }, this.files),
        records: this.records,
        trainer: this.trainer,
        data: this.data,
        profile: {
          profile: async () => DeviceProfile.make({ device: "", supervisor_idle_bytes: 20_000_000 }),
          heldBytes: () => this.heldBytes(),
          measured: async (entry) => {
            this.measured.push(entry);
          },
        },
        conditions: this.conditions,
        clock: this.clock,
        ...parts,
      },
    );
    const before = this.coordinator.count("hello");
    this.#running = this.agent.run();
    if (this.broker.denial === null) await this.until(() => this.coordinator.count("hello") > before);
    return this;
  }

  async stop(): Promise<void> {
    this.agent.stop();
    await this.#running;
  }

  async ended(): Promise<void> {
    await this.#running;
  }

  /** As if the tab had been killed: nothing of the agent goes on, what it stored stays. */
  async kill(): Promise<void> {
    this.#transport?.die();
    this.clock = new ManualClock(); // the old one stands still
    this.trainer = new ScriptedTrainer();
    await this.settle();
  }

  /** Lets everything that is under way come to rest. */
  async settle(): Promise<void> {
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setTimeout(resolve, 0));
  }

  /** Time passes, in steps of a quarter of a second, until `isSo`. */
  async until(isSo: () => boolean, withinS = 60): Promise<void> {
    for (let waited = 0; waited < withinS; waited += 0.25) {
      for (let i = 0; i < 5; i++) {
        if (isSo()) return;
        await new Promise((resolve) => setTimeout(resolve, 0));
      }
      this.clock.advance(0.25);
    }
    const { state, lastError } = this.agent.status.current;
    throw new Error(`not within ${withinS} s; agent ${state}, ${lastError?.message}; ${this.coordinator.kinds()}`);
  }

  async pass(seconds: number): Promise<void> {
    for (let passed = 0; passed < seconds; passed += 0.25) {
      this.clock.advance(0.25);
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    await this.settle();
  }

  get state(): string {
    return this.agent.status.current.state;
  }
}
