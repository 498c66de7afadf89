/** The work order. Names and meanings are those of the wire protocol, docs/wire-protocol.md. */

export type Encoding = "raw" | "zstd";
export type LastBatch = "drop" | "keep" | "wrap";

export interface BlobRef {
  readonly digest: string;
  readonly size: number;
  readonly encoding: Encoding;
  readonly encoded_size: number;
}

export interface Turn {
  readonly program: string;
  readonly advance_batch: boolean;
}

export interface Schedule {
  readonly epochs: number;
  readonly steps: number;
  readonly turns: readonly Turn[];
}

export interface WorkOrder {
  readonly assignment_id: string;
  readonly federation: string;
  readonly device: string;
  readonly round: number;
  readonly attempt: number;
  readonly artifact: BlobRef;
  readonly weights: BlobRef;
  readonly schedule: Schedule;
  readonly batch: number;
  readonly last_batch: LastBatch;
  readonly data_seed: bigint;
  readonly hyper: Readonly<Record<string, number>>;
  readonly upload: readonly string[];
  readonly deadline_s: number;
  readonly peak_bytes: number;
  readonly threads: number;
  readonly encoding: Encoding;
  readonly constants: BlobRef | null;
  readonly report_labels: boolean;
  readonly artifact_signature: Uint8Array;
  readonly bulk: string;
}
