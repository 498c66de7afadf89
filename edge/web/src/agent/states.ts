/**
 * What an agent may do next: one transition table, nothing else.
 *
 *     idle --order--> fetching --fetched--> waiting --begin--> training --trained--> uploading --acked--> idle
 *
 * A device waits until its conditions allow training, most often not at all; a training is `paused` when they no longer
 * do, and may have ended just before. Transfers that the conditions do not allow are `held`, and wait until they do.
 * Any work can be `dropped` (refused, expired, cancelled by a newer order, crashed for good), any state can `stop`.
 */

import type { AgentState } from "../contracts/messages";

export type Move =
  | "order"
  | "fetched"
  | "begin"
  | "paused"
  | "trained"
  | "restored"
  | "held"
  | "download"
  | "upload"
  | "acked"
  | "dropped"
  | "stop";

const TABLE: Readonly<Record<AgentState, Partial<Record<Move, AgentState>>>> = {
  idle: { order: "fetching", restored: "uploading", stop: "stopping" },
  fetching: { fetched: "waiting", held: "waiting", dropped: "idle", stop: "stopping" },
  waiting: {
    begin: "training",
    trained: "uploading",
    download: "fetching",
    upload: "uploading",
    acked: "idle",
    dropped: "idle",
    stop: "stopping",
  },
  training: { paused: "waiting", trained: "uploading", dropped: "idle", stop: "stopping" },
  uploading: { acked: "idle", held: "waiting", dropped: "idle", stop: "stopping" },
  stopping: {},
};

/** A move the table does not have: a bug of ours, never the other side's doing. */
export class IllegalMove extends Error {}

export class StateMachine {
  #state: AgentState = "idle";

  get state(): AgentState {
    return this.#state;
  }

  /** The new state after `move`. @throws IllegalMove when there is none; the state stays as it was. */
  move(move: Move): AgentState {
    const next = TABLE[this.#state][move];
    if (next === undefined) {
      const known = Object.keys(TABLE[this.#state]).join(", ") || "none";
      throw new IllegalMove(`agent is '${this.#state}': no move '${move}', possible are: ${known}`);
    }
    this.#state = next;
    return next;
  }

  /** A transfer that is held back is waited for; one that no longer is goes on. */
  hold(isHeld: boolean, transfer: "fetching" | "uploading"): void {
    if (isHeld && this.#state === transfer) this.move("held");
    else if (!isHeld && this.#state === "waiting") this.move(transfer === "fetching" ? "download" : "upload");
  }
}
