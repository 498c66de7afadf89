/** What a device tells about a finished assignment: results, time, memory, bytes. */

import { BlobRef } from "./plan";
import { defaulted, dict, flag, float, integer, list, optional, type Struct, struct, text } from "./shapes";

/** The result of one assignment; the update itself travels as blocks under `update.digest`. */
export interface TrainReport {
  readonly assignment_id: string;
  readonly device: string;
  readonly round: number;
  readonly num_examples: number;
  readonly steps: number;
  readonly loss: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly step_ms_p50: number;
  readonly step_ms_p95: number;
  readonly trainer_peak_bytes: number;
  readonly supervisor_peak_bytes: number;
  readonly trainer_idle_bytes: number;
  readonly budget_bytes: number;
  /** The sum of both peaks is above `budget_bytes`. */
  readonly over_budget: boolean;
  readonly torch_loaded: boolean;
  readonly runtime: string;
  readonly bytes_down: number;
  readonly bytes_up: number;
  readonly update: BlobRef;
  /** From the order's acceptance to this report. */
  readonly wall_s: number;
  readonly temperature_c: number | null;
  readonly battery_percent: number | null;
  /** Threads the steps ran on; 0: not said. */
  readonly threads: number;
  /** Classes the device has examples of, rising; null unless the order asked. */
  readonly labels: readonly number[] | null;
  /** Devices that the update is the mean of, of a relay; 0: the device's own. */
  readonly site_devices: number;
}
export const TrainReport: Struct<TrainReport> = struct<TrainReport>("TrainReport", {
  assignment_id: text,
  device: text,
  round: integer,
  num_examples: integer,
  steps: integer,
  loss: float,
  metrics: dict(float),
  step_ms_p50: float,
  step_ms_p95: float,
  trainer_peak_bytes: integer,
  supervisor_peak_bytes: integer,
  trainer_idle_bytes: integer,
  budget_bytes: integer,
  over_budget: flag,
  torch_loaded: flag,
  runtime: text,
  bytes_down: integer,
  bytes_up: integer,
  update: BlobRef,
  wall_s: float,
  temperature_c: defaulted(optional(float), null),
  battery_percent: defaulted(optional(float), null),
  threads: defaulted(integer, 0),
  labels: defaulted(optional(list(integer)), null),
  site_devices: defaulted(integer, 0),
});
