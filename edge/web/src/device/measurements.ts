/** What this device measured while it trained, kept over reloads: memory and time by the work of an artifact. */

import type { Measured } from "../agent/profileSource";
import type { Cost } from "../contracts/manifest";
import type { Records } from "../store/records";

/** One finished training or self-test; bytes are growth beyond the idle trainer, work is of one step. */
export interface Measurement {
  readonly runtime: string;
  readonly artifact: string;
  readonly threads: number;
  readonly predictedBytes: number;
  readonly grownBytes: number;
  readonly graphBytes: number;
  /** Multiply-accumulates of a forward pass over the whole batch, 10^9. */
  readonly gigamacs: number;
  readonly stepMs: number;
  /** Seconds since 1970. */
  readonly at: number;
}

/** Newest ones kept, of all artifacts together. */
export const KEPT = 64;
const KEY = "device/measurements";

export class Measurements {
  readonly #records: Records;
  readonly #costOf: (artifact: string) => Promise<Cost | null>;
  readonly #now: () => number;

  /** `costOf` reads the manifest of an artifact that is still in the blob store; `now` is seconds since 1970. */
  constructor(
    records: Records,
    costOf: (artifact: string) => Promise<Cost | null>,
    now: () => number = () => Date.now() / 1000,
  ) {
    this.#records = records;
    this.#costOf = costOf;
    this.#now = now;
  }

  /** Keeps `entry`; what has no cost or nothing measured is passed over. */
  async add(entry: Measured): Promise<void> {
    const cost = await this.#costOf(entry.artifact);
    if (cost === null || !(entry.stepMsP50 > 0) || entry.threads < 1) return;
    const measurement: Measurement = {
      runtime: entry.runtime,
      artifact: entry.artifact,
      threads: entry.threads,
      predictedBytes: cost.predicted_peak_bytes,
      grownBytes: Math.max(0, entry.peakBytes - entry.idleBytes),
      graphBytes: cost.graph_bytes,
      gigamacs: (cost.macs * entry.batch) / 1e9,
      stepMs: entry.stepMsP50,
      at: this.#now(),
    };
    await this.#records.put(KEY, [...(await this.all()), measurement].slice(-KEPT));
  }

  /** Oldest first. */
  async all(): Promise<readonly Measurement[]> {
    return (await this.#records.get<Measurement[]>(KEY)) ?? [];
  }

  async clear(): Promise<void> {
    await this.#records.delete(KEY);
  }
}
