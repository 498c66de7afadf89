/** The training of the assignment in hand: begun when the gate lets it, else paused; begun again after a crash. */

import type { Refuse } from "../contracts/messages";
import type { Trainer } from "../trainer/trainer";
import type { AgentParts, TrainingEvent } from "./agentEvents";
import type { Assignment } from "./assignment";
import { ALWAYS } from "./conditions";
import { Crashes } from "./crashes";
import { Gate } from "./gate";
import type { AgentSettings } from "./settings";

/** A trainer that is not used is ended after so long: what it took for a training it gives back in no other way. */
const IDLE_S = 30;

export class Training {
  readonly gate: Gate;
  readonly crashes: Crashes;
  #isRunning = false;
  #isIdle = false;
  #idleSince = 0;
  #isPaused = false;

  readonly #trainer: Trainer;

  constructor(
    private readonly settings: AgentSettings,
    { trainer, conditions, records }: AgentParts,
    private readonly deliver: (event: TrainingEvent) => void,
  ) {
    this.#trainer = trainer;
    this.gate = new Gate(conditions ?? ALWAYS);
    this.crashes = new Crashes(settings, records);
  }

  /** Begins or goes on, if `work` may train now; whether it does. */
  async begin(work: Assignment): Promise<boolean> {
    if (!this.gate.lets(work, "training", this.#isPaused)) return false;
    if (this.#isPaused) this.#unpause();
    else await this.#train(work);
    return true;
  }

  /** Whether `work` had to be paused now. */
  pauseIfUnmet(work: Assignment): boolean {
    if (this.gate.lets(work, "training", true)) return false;
    this.#trainer.pause();
    this.#isPaused = true;
    return true;
  }

  /** The refusal that follows from `error`; null when it has begun again, or will once it is no longer paused. */
  async failed(work: Assignment, error: unknown): Promise<Refuse | null> {
    this.#isRunning = false;
    const refusal = this.crashes.after(work, error);
    if (refusal !== null) return refusal;
    if (this.#isPaused) this.#unpause();
    else await this.#train(work);
    return null;
  }

  /** It came to its end. */
  async done(): Promise<void> {
    this.#isIdle ||= this.#isRunning;
    this.#isRunning = false;
    this.#unpause();
    await this.crashes.over();
  }

  /** Ends it, if there is one. */
  async drop(): Promise<void> {
    if (this.#isRunning) this.#kill();
    await this.done();
  }

  /** Ends a trainer that has trained and has had nothing to do for a while. */
  endIfUnused(now: number, isWorking: boolean): void {
    if (isWorking || !this.#isIdle) this.#idleSince = now;
    else if (now - this.#idleSince >= IDLE_S) this.#kill();
  }

  #kill(): void {
    this.#trainer.kill();
    this.#isIdle = this.#isRunning = false;
  }

  /** Also when there is nothing to go on with: a trainer that is paused stays so for the next order. */
  #unpause(): void {
    if (this.#isPaused) this.#trainer.resume();
    this.#isPaused = false;
  }

  async #train(work: Assignment): Promise<void> {
    this.#isRunning = true;
    this.#isIdle = false;
    await this.crashes.begins(work);
    this.#trainer
      .train(work.trainRequest(this.settings), (progress) => this.deliver({ type: "progress", work, progress }))
      .then(
        (trained) => this.deliver({ type: "trained", work, trained }),
        (error: unknown) => this.deliver({ type: "failed", work, error }),
      );
  }
}
