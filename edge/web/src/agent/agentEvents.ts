/** What an agent is made of, and what it takes from its queue. */

import type { Sign } from "../contracts/envelope";
import type { DataSource } from "../data/dataSource";
import type { BlobStore } from "../store/blobStore";
import type { Records } from "../store/records";
import type { Progress, Trained, Trainer } from "../trainer/trainer";
import type { Transport, TransportEvent } from "../transport/transport";
import type { Assignment } from "./assignment";
import type { Clock } from "./clock";
import type { Conditions } from "./conditions";
import type { Piece } from "./fetcher";
import type { ProfileSource } from "./profileSource";
import type { StatusBoard } from "./status";

export interface AgentParts {
  readonly transport: Transport;
  readonly store: BlobStore;
  readonly records: Records;
  readonly trainer: Trainer;
  readonly data: DataSource;
  readonly profile: ProfileSource;
  readonly conditions?: Conditions | undefined;
  /** Signs what this device sends. */
  readonly sign?: Sign | undefined;
  /** Where it tells how it is doing; one of its own when none is given. */
  readonly status?: StatusBoard | undefined;
  readonly clock?: Clock | undefined;
  readonly fetch?: typeof fetch | undefined;
}

export type TrainingEvent =
  | { readonly type: "progress"; readonly work: Assignment; readonly progress: Progress }
  | { readonly type: "trained"; readonly work: Assignment; readonly trained: Trained }
  | { readonly type: "failed"; readonly work: Assignment; readonly error: unknown };

export type AgentEvent =
  | TransportEvent
  | TrainingEvent
  | { readonly type: "piece"; readonly work: Assignment; readonly piece: Piece }
  | { readonly type: "described"; readonly isNews: boolean }
  | { readonly type: "data" | "conditions" | "tick" }
  | { readonly type: "stop"; readonly reason: string };
