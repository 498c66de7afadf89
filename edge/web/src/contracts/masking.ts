/**
 * Masked updates: what an order asks for and what is said about it. A page cannot mask; it reads these bodies all the
 * same. What each side does is in docs/wire-protocol.md.
 */

import { bytes, defaulted, dict, flag, float, integer, list, type Struct, struct, text } from "./shapes";

/** An order's masking: whole numbers modulo 2^32, under masks that cancel in the cohort's sum. */
export interface Masking {
  readonly step: number;
  readonly largest: number;
  readonly max_weight: number;
  readonly is_weighted: boolean;
  readonly clip_norm: number;
}
export const Masking: Struct<Masking> = struct<Masking>("Masking", {
  step: float,
  largest: integer,
  max_weight: integer,
  is_weighted: defaulted(flag, true),
  clip_norm: defaulted(float, 0),
});

/** A device's two public keys for one assignment. */
export interface Keys {
  readonly assignment_id: string;
  readonly sharing: Uint8Array;
  readonly masking: Uint8Array;
}
export const Keys: Struct<Keys> = struct<Keys>("Keys", { assignment_id: text, sharing: bytes, masking: bytes });

/** One device of a roster and its public keys. */
export interface Member {
  readonly device: string;
  readonly sharing: Uint8Array;
  readonly masking: Uint8Array;
}
export const Member: Struct<Member> = struct<Member>("Member", { device: text, sharing: bytes, masking: bytes });

/** Who masks together, and how many of them undo a mask. */
export interface Roster {
  readonly assignment_id: string;
  readonly threshold: number;
  readonly members: readonly Member[];
}
export const Roster: Struct<Roster> = struct<Roster>("Roster", {
  assignment_id: text,
  threshold: integer,
  members: list(Member),
});

/** A share of this device's secrets for every other member, sealed, with digests of what was given. */
export interface Shares {
  readonly assignment_id: string;
  readonly sealed: Readonly<Record<string, Uint8Array>>;
  readonly own: Uint8Array;
  readonly self_mask: Uint8Array;
}
export const Shares: Struct<Shares> = struct<Shares>("Shares", {
  assignment_id: text,
  sealed: dict(bytes),
  own: defaulted(bytes, new Uint8Array(0)),
  self_mask: defaulted(bytes, new Uint8Array(0)),
});

/** The shares sealed for this device, by sender. */
export interface Mail {
  readonly assignment_id: string;
  readonly sealed: Readonly<Record<string, Uint8Array>>;
}
export const Mail: Struct<Mail> = struct<Mail>("Mail", { assignment_id: text, sealed: dict(bytes) });

/** All shares of the mail are in order. */
export interface Checked {
  readonly assignment_id: string;
}
export const Checked: Struct<Checked> = struct<Checked>("Checked", { assignment_id: text });

/** Shares of a sender that cannot be used; the key is of older releases. */
export interface Complaint {
  readonly assignment_id: string;
  readonly sender: string;
  readonly sharing_key: Uint8Array;
}
export const Complaint: Struct<Complaint> = struct<Complaint>("Complaint", {
  assignment_id: text,
  sender: text,
  sharing_key: defaulted(bytes, new Uint8Array(0)),
});

/** A receiver complains of what this device gave it. */
export interface Dispute {
  readonly assignment_id: string;
  readonly receiver: string;
}
export const Dispute: Struct<Dispute> = struct<Dispute>("Dispute", { assignment_id: text, receiver: text });

/** The private key that opens what this device gave a receiver. */
export interface Opening {
  readonly assignment_id: string;
  readonly receiver: string;
  readonly key: Uint8Array;
}
export const Opening: Struct<Opening> = struct<Opening>("Opening", {
  assignment_id: text,
  receiver: text,
  key: bytes,
});

/** Nobody complains any more: updates may be masked. */
export interface Proceed {
  readonly assignment_id: string;
}
export const Proceed: Struct<Proceed> = struct<Proceed>("Proceed", { assignment_id: text });

/** Whose updates are in the sum and whose will never be. */
export interface Reveal {
  readonly assignment_id: string;
  readonly reported: readonly string[];
  readonly dropped: readonly string[];
}
export const Reveal: Struct<Reveal> = struct<Reveal>("Reveal", {
  assignment_id: text,
  reported: list(text),
  dropped: list(text),
});

/** Shares of self masks and of masking keys, by device. */
export interface Revealed {
  readonly assignment_id: string;
  readonly self_masks: Readonly<Record<string, Uint8Array>>;
  readonly masking_keys: Readonly<Record<string, Uint8Array>>;
}
export const Revealed: Struct<Revealed> = struct<Revealed>("Revealed", {
  assignment_id: text,
  self_masks: dict(bytes),
  masking_keys: dict(bytes),
});

/** Devices that gave shares of other secrets than they signed. */
export interface Exclude {
  readonly assignment_id: string;
  readonly devices: readonly string[];
}
export const Exclude: Struct<Exclude> = struct<Exclude>("Exclude", { assignment_id: text, devices: list(text) });

/** Seeds of the masks that are shared with those devices. */
export interface Excluded {
  readonly assignment_id: string;
  readonly seeds: Readonly<Record<string, Uint8Array>>;
}
export const Excluded: Struct<Excluded> = struct<Excluded>("Excluded", { assignment_id: text, seeds: dict(bytes) });
