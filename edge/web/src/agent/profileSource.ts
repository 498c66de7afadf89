/** What the device knows of itself, and what its own trainings add to that. */

import type { ArtifactManifest } from "../contracts/manifest";
import type { WorkOrder } from "../contracts/plan";
import type { DeviceProfile } from "../contracts/profile";
import type { Trained } from "../trainer/trainer";

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
  /** What the page holds now, where that can be told. */
  heldBytes?(): number | null;
  measured(entry: Measured): Promise<void>;
  linkMeasured?(entry: LinkMeasured): Promise<void>;
}

export function measuredOf(order: WorkOrder, manifest: ArtifactManifest, trained: Trained): Measured {
  return {
    runtime: manifest.runtime,
    artifact: order.artifact.digest,
    batch: order.batch,
    threads: trained.threads,
    stepMsP50: trained.stepMsP50,
    peakBytes: trained.peakBytes,
    idleBytes: trained.idleBytes,
    predictedPeakBytes: manifest.cost.predicted_peak_bytes,
    predictedStepMs: manifest.cost.predicted_step_ms,
  };
}
