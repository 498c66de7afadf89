/** What the page and the training worker say to each other. Tensors pass through the stores, updates by transfer. */

import type { Progress, Ready, Trained, TrainRequest } from "./trainer";

export type ToWorker =
  /** First of all, and once: load the runtime with so many threads. */
  | { readonly type: "start"; readonly threads: number }
  | { readonly type: "train"; readonly request: TrainRequest }
  | { readonly type: "pause" }
  | { readonly type: "resume" };

export type FromWorker =
  | { readonly type: "ready"; readonly ready: Ready }
  | { readonly type: "progress"; readonly progress: Progress }
  | { readonly type: "trained"; readonly trained: Trained }
  /** `code` and `hint` are an ApportionError's; `peakBytes` is what was reached. */
  | {
      readonly type: "failed";
      readonly code: string;
      readonly message: string;
      readonly hint: string;
      readonly peakBytes: number;
    };
