/** What the device knows of itself, and what its own trainings add to that. */

import type { DeviceProfile } from "../contracts/profile";

/** One finished training, from which later predictions are mended. */
export interface Measured {
  readonly runtime: string;
  readonly artifact: string;
  readonly batch: number;
  readonly threads: number;
  readonly stepMsP50: number;
  readonly peakBytes: number;
  readonly idleBytes: number;
  readonly predictedPeakBytes: number;
  readonly predictedStepMs: number;
}

/** Bytes that came over the link in a time without a break. */
export interface LinkMeasured {
  readonly bytes: number;
  readonly seconds: number;
  readonly method: "https" | "mqtt";
}

export interface ProfileSource {
  /** The device now. The agent puts in what is its own: device id, budget, runtimes, idle sizes, most threads. */
  profile(): Promise<DeviceProfile>;
  measured(entry: Measured): Promise<void>;
  linkMeasured?(entry: LinkMeasured): Promise<void>;
}
