/** When the owner lets the device train; what a device waits for has the names that it reports (`waiting_for`). */

export type Condition =
  | "memory"
  | "storage"
  | "temperature"
  | "battery"
  | "charging"
  | "time"
  /** The page is not visible: browsers slow hidden pages down or end them. */
  | "hidden"
  /** The link is metered. */
  | "network";

/** What a device waits for, and a sentence with the values. */
export interface Unmet {
  readonly waitingFor: Condition;
  readonly reason: string;
}

/** What the agent would do: each costs the owner something else. */
export type Purpose = "download" | "training" | "upload";

/** What the agent says when it asks. */
export interface Asked {
  readonly purpose: Purpose;
  /** What page and trainer are expected to reach together; 0: not known. */
  readonly neededBytes: number;
  /** It trains already, in memory and storage that it has: those two are not asked about. */
  readonly isTraining: boolean;
  /** What it waited for until now; that one has to be better than its limit by a margin. */
  readonly before: Condition | null;
}

export interface Conditions {
  /**
   * The first condition that keeps the device from what is asked for, null when it may. Blobs and updates wait as well,
   * for what costs the owner more than time: a metered link, an empty battery. Small messages never do.
   */
  unmet(asked: Asked): Unmet | null;
  /** Calls `listener` whenever another answer is possible; gives back what ends that. */
  subscribe(listener: () => void): () => void;
}

/** No conditions. */
export const ALWAYS: Conditions = { unmet: () => null, subscribe: () => () => {} };
