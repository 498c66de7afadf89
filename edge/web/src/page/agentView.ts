/** What the views show of an agent's status. */

import type { AgentStatus, LastError } from "../agent/status";
import type { PageState, Problem, Traffic, TrafficRow, TrainingState } from "./model";

const GROUPED_MS = 60_000;

/** A connection that comes back by itself is a state, not a problem. */
const NO_PROBLEM = new Set(["broker-unreachable"]);

export function trainingOf(status: AgentStatus, isOnline: boolean): TrainingState {
  return {
    connection: status.connection === "connecting" && !isOnline ? "offline" : status.connection,
    activity: status.state,
    waitingFor: status.waitingFor,
    reason: status.reason,
    round: status.round,
    step: status.step,
    totalSteps: status.totalSteps,
    losses: withLatest(status),
    stepMs: status.stepMs,
    usedBytes: status.peakBytes,
    fetchedBytes: status.fetchedBytes,
    totalBytes: status.totalBytes,
    rounds: status.roundsDone,
  };
}

/** The same on a page that showed `before` when the agent started: that stays until there is something new. */
export function trainingSince(before: TrainingState, status: AgentStatus, isOnline: boolean): TrainingState {
  const shown = trainingOf(status, isOnline);
  const rounds = before.rounds + status.roundsDone;
  if (status.totalSteps > 0 || status.round !== null) return { ...shown, rounds };
  const { round, step, totalSteps, losses, stepMs, usedBytes } = before;
  return { ...shown, round, step, totalSteps, losses, stepMs, usedBytes, rounds };
}

/** The history of a long assignment is thinned; its end is not. */
function withLatest({ lossHistory, loss }: AgentStatus): readonly number[] {
  return loss === null || lossHistory.at(-1) === loss ? lossHistory : [...lossHistory, loss];
}

export function trafficOf(status: AgentStatus): Traffic {
  return { sentBytes: status.bytesUp, receivedBytes: status.bytesDown, rows: grouped(status.log) };
}

/** Newest first. A transfer is hundreds of messages to and fro: those of a kind within a minute are one row. */
function grouped(log: AgentStatus["log"]): TrafficRow[] {
  const rows: TrafficRow[] = [];
  for (const entry of [...log].reverse()) {
    const index = rows.findIndex(
      (row) => row.kind === entry.kind && row.isSent === entry.isSent && row.at - entry.at < GROUPED_MS,
    );
    const row = rows[index];
    if (row === undefined) rows.push({ ...entry });
    else rows[index] = { ...row, count: row.count + entry.count, bytes: row.bytes + entry.bytes };
  }
  return rows;
}

/** The problem that a status tells, or null for one that was shown before (`shownAt`) or is none. */
export function newProblem(error: LastError | null, shownAt: number): Problem | null {
  if (error === null || error.at <= shownAt || NO_PROBLEM.has(error.code)) return null;
  return { code: error.code, message: error.message, hint: error.hint };
}

export const LAST_SEEN = "page/last-seen";

/** What is remembered of a session, so that a start without a network shows where it ended. */
export interface LastSeen {
  readonly round: number | null;
  readonly step: number;
  readonly totalSteps: number;
  readonly losses: readonly number[];
  readonly stepMs: number | null;
  readonly rounds: number;
}

export function lastSeen({ training }: PageState): LastSeen {
  const { round, step, totalSteps, losses, stepMs, rounds } = training;
  return { round, step, totalSteps, losses, stepMs, rounds };
}
