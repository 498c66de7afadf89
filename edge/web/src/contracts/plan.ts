/** The work order. Names and meanings are those of the wire protocol, docs/wire-protocol.md. */

import { sha256 } from "@noble/hashes/sha2";
import { bytesToHex } from "@noble/hashes/utils";
import { Masking } from "./masking";
import {
  bytes,
  defaulted,
  dict,
  flag,
  float,
  integer,
  integer64,
  list,
  oneOf,
  optional,
  type Struct,
  struct,
  text,
} from "./shapes";

export type Encoding = "raw" | "zstd";
export type LastBatch = "drop" | "keep" | "wrap";

const ENCODING = oneOf("raw", "zstd");

/** A blob by the SHA-256 and size of its uncompressed bytes, and how it travels. */
export interface BlobRef {
  readonly digest: string;
  readonly size: number;
  readonly encoding: Encoding;
  /** Bytes on the wire; equals `size` for `raw`. */
  readonly encoded_size: number;
}
export const BlobRef: Struct<BlobRef> = struct<BlobRef>("BlobRef", {
  digest: text,
  size: integer,
  encoding: defaulted(ENCODING, "raw"),
  encoded_size: defaulted(integer, 0),
});

/** One entry of a cyclic schedule: the program to run, and whether the next entry sees a new batch. */
export interface Turn {
  readonly program: string;
  readonly advance_batch: boolean;
}
export const Turn: Struct<Turn> = struct<Turn>("Turn", { program: text, advance_batch: defaulted(flag, true) });

/** Whole `epochs` over the local data, or exactly `steps` batches; the other is 0. `turns` repeat cyclically. */
export interface Schedule {
  readonly epochs: number;
  readonly steps: number;
  readonly turns: readonly Turn[];
}
export const Schedule: Struct<Schedule> = struct<Schedule>("Schedule", {
  epochs: defaulted(integer, 0),
  steps: defaulted(integer, 0),
  turns: defaulted(list(Turn), [{ program: "train", advance_batch: true }]),
});

/** What one device is to do in one round. */
export interface WorkOrder {
  readonly assignment_id: string;
  readonly federation: string;
  readonly device: string;
  readonly round: number;
  readonly attempt: number;
  /** The manifest's bytes; the files follow by the digests inside it. */
  readonly artifact: BlobRef;
  /** Safetensors of every parameter, buffer and sent slot or accumulator. */
  readonly weights: BlobRef;
  readonly schedule: Schedule;
  readonly batch: number;
  readonly last_batch: LastBatch;
  /** 64 bits. */
  readonly data_seed: bigint;
  /** Values of the program's scalar `hyper` inputs. */
  readonly hyper: Readonly<Record<string, number>>;
  /** Names of the tensors the update holds; `<name>#kept` is the kept entries of a masked one. */
  readonly upload: readonly string[];
  /** Seconds left when the order was sent, to be counted on a monotonic clock; 0: none. */
  readonly deadline_s: number;
  readonly peak_bytes: number;
  readonly threads: number;
  readonly encoding: Encoding;
  readonly constants: BlobRef | null;
  readonly report_labels: boolean;
  /** Ed25519 signature of the manifest's exact bytes; empty where the coordinator has no key. */
  readonly artifact_signature: Uint8Array;
  /** Address where blobs may be had by range request, a digest added to it; empty: over MQTT only. */
  readonly bulk: string;
  /** Of the update; a page sends whole float32 values whatever is asked for. */
  readonly precision: "fp32" | "fp16" | "int8";
  /** Equal for orders whose tensors stand for the same part of the model; empty: not said. */
  readonly cut_digest: string;
  /** Pages are asked for none: their hello names no such ability. */
  readonly masking: Masking | null;
  /** Whether the mean of several devices' updates may stand for them; of use to relays. */
  readonly summable: boolean;
  /** Where the update may be put over HTTPS, the assignment id added to it; pages are told none. */
  readonly upload_to: string;
  /** The run's nonce; empty: of an older coordinator. */
  readonly run: string;
  /** The run's method, for the owner's policy; a page has none. */
  readonly method: string;
  /** What a device keeps for itself; pages are asked for none: their hello names no such ability. */
  readonly personal: readonly string[];
  /** Whose control variates a device goes on from; pages are asked for none, as of personal layers. */
  readonly variates: string;
  /** The group of devices whose model this is; empty: that of all. */
  readonly cluster: string;
}
export const WorkOrder: Struct<WorkOrder> = struct<WorkOrder>("WorkOrder", {
  assignment_id: text,
  federation: text,
  device: text,
  round: integer,
  attempt: integer,
  artifact: BlobRef,
  weights: BlobRef,
  schedule: Schedule,
  batch: integer,
  last_batch: oneOf("drop", "keep", "wrap"),
  data_seed: integer64,
  hyper: dict(float),
  upload: list(text),
  deadline_s: defaulted(float, 0),
  peak_bytes: defaulted(integer, 0),
  threads: defaulted(integer, 1),
  encoding: defaulted(ENCODING, "raw"),
  constants: defaulted(optional(BlobRef), null),
  report_labels: defaulted(flag, false),
  artifact_signature: defaulted(bytes, new Uint8Array(0)),
  bulk: defaulted(text, ""),
  precision: defaulted(oneOf("fp32", "fp16", "int8"), "fp32"),
  cut_digest: defaulted(text, ""),
  masking: defaulted(optional(Masking), null),
  summable: defaulted(flag, false),
  upload_to: defaulted(text, ""),
  run: defaulted(text, ""),
  method: defaulted(text, ""),
  personal: defaulted(list(text), []),
  variates: defaulted(text, ""),
  cluster: defaulted(text, ""),
});

/** SHA-256 over `"<federation>\n<run>\n<round>\n<device>\n<attempt>"`, hex, without the line of an empty run. */
export function assignmentId(federation: string, round: number, device: string, attempt: number, run = ""): string {
  const text = run === "" ? `${federation}\n` : `${federation}\n${run}\n`;
  return bytesToHex(sha256(new TextEncoder().encode(`${text}${round}\n${device}\n${attempt}`)));
}
