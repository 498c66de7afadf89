/** What the page shows of an agent: a snapshot that never changes, and a call when there is a new one. */

import { ApportionError } from "../contracts/errors";
import type { AgentState } from "../contracts/messages";
import type { Progress } from "../trainer/trainer";
import type { Assignment } from "./assignment";

export type Connection = "connecting" | "connected" | "offline" | "denied";

/** `elsewhere`: another tab of this browser runs this device's agent. `stopped`: the agent has ended. */
export type Activity = AgentState | "elsewhere" | "stopped";

export interface LastError {
  readonly code: string;
  readonly message: string;
  readonly hint: string;
  /** Milliseconds since 1970. */
  readonly at: number;
}

/** Messages of one kind that followed one another. */
export interface TrafficEntry {
  readonly isSent: boolean;
  readonly kind: string;
  readonly count: number;
  readonly bytes: number;
  /** Of the last one, milliseconds since 1970. */
  readonly at: number;
}

export interface AgentStatus {
  readonly connection: Connection;
  readonly state: Activity;
  /** The condition that is waited for, and a sentence with its values; empty when none is. */
  readonly waitingFor: string;
  readonly reason: string;
  readonly assignmentId: string;
  readonly round: number | null;
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number | null;
  /** Of the running or last assignment, from its beginning: of a long one every second, fourth, … that was told. */
  readonly lossHistory: readonly number[];
  /** Of the running or last assignment: while it trains, of its latest steps, and what was reached so far. */
  readonly stepMs: number | null;
  readonly peakBytes: number | null;
  /** Of what is being fetched for the order; both 0 when nothing is. */
  readonly fetchedBytes: number;
  readonly totalBytes: number;
  /** Payloads over MQTT and bytes over HTTPS. */
  readonly bytesUp: number;
  readonly bytesDown: number;
  readonly roundsDone: number;
  readonly lastError: LastError | null;
  /** The latest 200, oldest first. */
  readonly log: readonly TrafficEntry[];
}

const FIRST: AgentStatus = {
  connection: "connecting",
  state: "idle",
  waitingFor: "",
  reason: "",
  assignmentId: "",
  round: null,
  step: 0,
  totalSteps: 0,
  loss: null,
  lossHistory: [],
  stepMs: null,
  peakBytes: null,
  fetchedBytes: 0,
  totalBytes: 0,
  bytesUp: 0,
  bytesDown: 0,
  roundsDone: 0,
  lastError: null,
  log: [],
};
const MOST_LOSSES = 500;
const MOST_ENTRIES = 200;
/** Of what others say: a broker may put any text in anybody's mouth, and 200 kinds of 300 kB are 60 MB. */
const MOST_KIND = 40;
const MOST_TEXT = 500;

export class StatusBoard {
  #status = FIRST;
  /** Of the losses that were told, every `#stride`th is kept. */
  #stride = 1;
  #told = 0;
  readonly #listeners = new Set<(status: AgentStatus) => void>();

  get current(): AgentStatus {
    return this.#status;
  }

  /** Calls `listener` with every new status; gives back what ends that. */
  subscribe(listener: (status: AgentStatus) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  set(change: Partial<AgentStatus>): void {
    const keys = Object.keys(change) as (keyof AgentStatus)[];
    if (keys.every((key) => Object.is(this.#status[key], change[key]))) return;
    this.#status = { ...this.#status, ...change };
    for (const listener of this.#listeners) listener(this.#status);
  }

  progress({ step, totalSteps, loss, ...told }: Progress): void {
    let { lossHistory } = this.#status;
    if (lossHistory.length === 0) [this.#stride, this.#told] = [1, 0];
    if (this.#told % this.#stride === 0) lossHistory = [...lossHistory, loss];
    this.#told += 1;
    if (lossHistory.length > MOST_LOSSES) {
      lossHistory = lossHistory.filter((_, i) => i % 2 === 0);
      this.#stride *= 2;
    }
    const { stepMs = this.#status.stepMs, peakBytes = this.#status.peakBytes } = told;
    this.set({ step, totalSteps, loss, lossHistory, stepMs, peakBytes });
  }

  failed(code: string, message: string, hint = ""): void {
    const at = Date.now();
    this.set({ lastError: { code: code.slice(0, MOST_KIND), message: message.slice(0, MOST_TEXT), hint, at } });
  }

  tell(error: unknown): void {
    if (error instanceof ApportionError) this.failed(error.code, error.message, error.hint);
    else this.failed("error", error instanceof Error ? error.message : String(error));
  }

  /** A message of `bytes` went, or came. */
  passed(isSent: boolean, said: string, bytes: number): void {
    const kind = said.slice(0, MOST_KIND);
    const log = [...this.#status.log];
    const last = log.at(-1);
    if (last?.kind === kind && last.isSent === isSent) {
      log[log.length - 1] = { isSent, kind, count: last.count + 1, bytes: last.bytes + bytes, at: Date.now() };
    } else {
      log.push({ isSent, kind, count: 1, bytes, at: Date.now() });
    }
    const { bytesUp, bytesDown } = this.#status;
    this.set({
      log: log.slice(-MOST_ENTRIES),
      bytesUp: bytesUp + (isSent ? bytes : 0),
      bytesDown: bytesDown + (isSent ? 0 : bytes),
    });
  }
}

/** What is shown of an agent in `state` with `work` in hand. */
export function shown(state: AgentState, work: Assignment | null): Partial<AgentStatus> {
  const isWaiting = state === "waiting";
  const progress = state === "fetching" ? work?.fetch?.progress : undefined;
  return {
    state,
    waitingFor: isWaiting ? (work?.waitingFor ?? "") : "",
    reason: isWaiting ? (work?.waiting ?? "") : "",
    assignmentId: work?.order.assignment_id ?? "",
    ...(work === null ? {} : { round: work.order.round }),
    fetchedBytes: progress?.fetched ?? 0,
    totalBytes: progress?.total ?? 0,
  };
}
