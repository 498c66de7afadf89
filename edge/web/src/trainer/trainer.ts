/** What an agent asks of whoever trains: a worker in the browser, a scripted one in tests. */

import type { WorkOrder } from "../contracts/plan";

/** All blobs that the order names are in the blob store called `store`, the examples in the data store `data`. */
export interface TrainRequest {
  readonly order: WorkOrder;
  readonly store: string;
  readonly data: string;
  readonly threads: number;
  /** Whether the artifact's self-test runs before its first training here. */
  readonly selfTest: boolean;
}

export interface Progress {
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number;
  /** Median of the latest steps. */
  readonly stepMs?: number | undefined;
  /** Reached so far, counted as in {@link Trained}. */
  readonly peakBytes?: number | undefined;
}

/** What came out. Bytes count the runtime's own memory, which is the trainer's here. */
export interface Trained {
  readonly numExamples: number;
  readonly steps: number;
  readonly loss: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly stepMsP50: number;
  readonly stepMsP95: number;
  readonly peakBytes: number;
  readonly idleBytes: number;
  readonly threads: number;
  readonly labels: readonly number[] | null;
  /** The tensors of `order.upload`, as a safetensors file. */
  readonly update: Uint8Array;
}

/** Sizes and versions of the runtime, known once it is loaded. */
export interface Ready {
  readonly runtime: string;
  readonly version: string;
  readonly idleBytes: number;
  readonly maxThreads: number;
}

export interface Trainer {
  /** Loads the runtime, if it is not. */
  ready(): Promise<Ready>;
  /** Resolves when the order is done; rejects with an ApportionError, whose code the refusal carries. */
  train(request: TrainRequest, onProgress: (progress: Progress) => void): Promise<Trained>;
  /** Between two steps; resume goes on with the next one. */
  pause(): void;
  resume(): void;
  /** Ends it at once and frees its memory; a pending train rejects. */
  kill(): void;
}
