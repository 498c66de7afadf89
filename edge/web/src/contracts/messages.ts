/**
 * Bodies of the message kinds. `report` carries a TrainReport, `order` a WorkOrder, `profile` a DeviceProfile;
 * who sends what, and when, is in docs/wire-protocol.md.
 */

import {
  Checked,
  Complaint,
  Dispute,
  Exclude,
  Excluded,
  Keys,
  Mail,
  Opening,
  Proceed,
  Reveal,
  Revealed,
  Roster,
  Shares,
} from "./masking";
import { BlobRef, WorkOrder } from "./plan";
import { DeviceProfile } from "./profile";
import { TrainReport } from "./report";
import {
  bytes,
  defaulted,
  dict,
  flag,
  float,
  integer,
  list,
  oneOf,
  optional,
  type Struct,
  struct,
  text,
} from "./shapes";

export type AgentState = "idle" | "fetching" | "waiting" | "training" | "uploading" | "stopping";

const STATE = oneOf("idle", "fetching", "waiting", "training", "uploading", "stopping");

/** Sent after every connect. An empty map from the coordinator asks for it. */
export interface Hello {
  readonly device: string;
  readonly agent_version: string;
  readonly profile: DeviceProfile;
  /** Runtime name -> version, of those this device can start. */
  readonly runtimes: Readonly<Record<string, string>>;
  /** Local examples; 0 when the data could not be read (`data_error` says why). */
  readonly num_examples: number;
  readonly data_error: string;
  readonly state: AgentState;
  /** The one in progress, or empty. */
  readonly assignment_id: string;
  /** The largest block the device accepts. */
  readonly block_bytes: number;
  /** Blocks in flight the device accepts. */
  readonly window: number;
  /** What it can do that not every device can; a page has none of these. */
  readonly abilities: readonly string[];
}
export const Hello: Struct<Hello> = struct<Hello>("Hello", {
  device: text,
  agent_version: text,
  profile: DeviceProfile,
  runtimes: dict(text),
  num_examples: integer,
  data_error: defaulted(text, ""),
  state: defaulted(STATE, "idle"),
  assignment_id: defaulted(text, ""),
  block_bytes: defaulted(integer, 262_144),
  window: defaulted(integer, 4),
  abilities: defaulted(list(text), []),
});

/** Still here: `reason` says in words with values why a `waiting` device waits, `waiting_for` for what. */
export interface Heartbeat {
  readonly state: AgentState;
  readonly assignment_id: string;
  readonly step: number;
  readonly total_steps: number;
  readonly loss: number | null;
  readonly reason: string;
  readonly waiting_for: string;
}
export const Heartbeat: Struct<Heartbeat> = struct<Heartbeat>("Heartbeat", {
  state: STATE,
  assignment_id: defaulted(text, ""),
  step: defaulted(integer, 0),
  total_steps: defaulted(integer, 0),
  loss: defaulted(optional(float), null),
  reason: defaulted(text, ""),
  waiting_for: defaulted(text, ""),
});

/** Going away; as last will the reason is `connection lost`. */
export interface Bye {
  readonly reason: string;
}
export const Bye: Struct<Bye> = struct<Bye>("Bye", { reason: text });

/** The order is taken. */
export interface Accept {
  readonly assignment_id: string;
}
export const Accept: Struct<Accept> = struct<Accept>("Accept", { assignment_id: text });

/** The order is not taken: `code` is an error's code, `reason` its text; bytes when memory is the reason. */
export interface Refuse {
  readonly assignment_id: string;
  readonly code: string;
  readonly reason: string;
  readonly needed_bytes: number;
  readonly budget_bytes: number;
  readonly peak_bytes: number;
}
export const Refuse: Struct<Refuse> = struct<Refuse>("Refuse", {
  assignment_id: text,
  code: text,
  reason: text,
  needed_bytes: defaulted(integer, 0),
  budget_bytes: defaulted(integer, 0),
  peak_bytes: defaulted(integer, 0),
});

/** Ask for `length` bytes of the encoded blob from `offset`. */
export interface Get {
  readonly digest: string;
  readonly encoding: string;
  readonly offset: number;
  readonly length: number;
}
export const Get: Struct<Get> = struct<Get>("Get", { digest: text, encoding: text, offset: integer, length: integer });

/** Bytes of the encoded blob; `total` is its whole encoded size. */
export interface Block {
  readonly digest: string;
  readonly offset: number;
  readonly total: number;
  readonly data: Uint8Array;
}
export const Block: Struct<Block> = struct<Block>("Block", {
  digest: text,
  offset: integer,
  total: integer,
  data: bytes,
});

/** An update is ready for `assignment_id`. */
export interface Offer {
  readonly assignment_id: string;
  readonly update: BlobRef;
}
export const Offer: Struct<Offer> = struct<Offer>("Offer", { assignment_id: text, update: BlobRef });

/** Send from `offset` on; everything before it has arrived. `offset === encoded_size` means complete. */
export interface Grant {
  readonly assignment_id: string;
  readonly digest: string;
  readonly offset: number;
  readonly block_bytes: number;
  readonly window: number;
}
export const Grant: Struct<Grant> = struct<Grant>("Grant", {
  assignment_id: text,
  digest: text,
  offset: integer,
  block_bytes: integer,
  window: integer,
});

/** Bytes of an offered update. */
export interface Put {
  readonly assignment_id: string;
  readonly digest: string;
  readonly offset: number;
  readonly data: Uint8Array;
}
export const Put: Struct<Put> = struct<Put>("Put", {
  assignment_id: text,
  digest: text,
  offset: integer,
  data: bytes,
});

/** `accepted`: the report is in the ledger. Otherwise it never will be, for `reason`. Either way: forget it. */
export interface Ack {
  readonly assignment_id: string;
  readonly accepted: boolean;
  readonly code: string;
  readonly reason: string;
}
export const Ack: Struct<Ack> = struct<Ack>("Ack", {
  assignment_id: text,
  accepted: flag,
  code: defaulted(text, ""),
  reason: defaulted(text, ""),
});

/** The `error` kind: `about` is an assignment id, digest or message id. (Named apart from JavaScript's own Error.) */
export interface ErrorMessage {
  readonly code: string;
  readonly message: string;
  readonly about: string;
}
export const ErrorMessage: Struct<ErrorMessage> = struct<ErrorMessage>("Error", {
  code: text,
  message: text,
  about: defaulted(text, ""),
});

/** Every kind of version 1 and its body's type. */
export interface Bodies {
  hello: Hello;
  heartbeat: Heartbeat;
  bye: Bye;
  profile: DeviceProfile;
  order: WorkOrder;
  accept: Accept;
  refuse: Refuse;
  get: Get;
  block: Block;
  offer: Offer;
  grant: Grant;
  put: Put;
  report: TrainReport;
  ack: Ack;
  keys: Keys;
  roster: Roster;
  shares: Shares;
  mail: Mail;
  checked: Checked;
  complaint: Complaint;
  dispute: Dispute;
  opening: Opening;
  proceed: Proceed;
  reveal: Reveal;
  revealed: Revealed;
  exclude: Exclude;
  excluded: Excluded;
  error: ErrorMessage;
}

export type Kind = keyof Bodies;

export const BODIES: { readonly [K in Kind]: Struct<Bodies[K]> } = {
  hello: Hello,
  heartbeat: Heartbeat,
  bye: Bye,
  profile: DeviceProfile,
  order: WorkOrder,
  accept: Accept,
  refuse: Refuse,
  get: Get,
  block: Block,
  offer: Offer,
  grant: Grant,
  put: Put,
  report: TrainReport,
  ack: Ack,
  keys: Keys,
  roster: Roster,
  shares: Shares,
  mail: Mail,
  checked: Checked,
  complaint: Complaint,
  dispute: Dispute,
  opening: Opening,
  proceed: Proceed,
  reveal: Reveal,
  revealed: Revealed,
  exclude: Exclude,
  excluded: Excluded,
  error: ErrorMessage,
};
