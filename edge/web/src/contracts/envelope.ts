/**
 * The envelope of every message: msgpack `{v, id, kind, sent_at, body}`, size-checked before it is parsed, and a sixth
 * field `signature` over the body where there is one.
 *
 * The exact bytes of `body` are kept as they came: signatures are over those.
 */

import { bytesToHex } from "@noble/hashes/utils";
import { checkSize, decodeMsgpack, encodeMsgpack } from "./codec";
import { ApportionError, MessageRejected, UnsupportedVersion } from "./errors";
import { BODIES, type Bodies, type Kind } from "./messages";
import { MsgpackReader } from "./msgpackReader";
import { MsgpackWriter } from "./msgpackWriter";
import { bytes as binary, float, integer, type Struct, text } from "./shapes";

export const VERSION = 1;
/** One bulk block of at most 256 KiB and its envelope; the broker is configured to the same limit. */
export const MAX_MESSAGE_BYTES = 300_000;

/** The signature over the exact bytes of a body, sent as `kind` under the message id `id`. */
export type Sign = (body: Uint8Array, kind: string, id: string) => Promise<Uint8Array>;

export interface Envelope {
  readonly v: number;
  readonly id: string;
  /** As it came, known or not. */
  readonly kind: string;
  /** The sender's wall clock, seconds since 1970, for display only. */
  readonly sent_at: number;
  /** The exact msgpack bytes of the body, a view. */
  readonly body: Uint8Array;
  /** Empty where there is none. */
  readonly signature: Uint8Array;
  /** The body as a struct: `envelope.read(WorkOrder)`; MessageRejected when it is none. */
  read<T>(body: Struct<T>): T;
}

export interface SealOptions {
  /** A repeated message keeps its own; else random. */
  readonly id?: string;
  readonly sentAt?: number;
  readonly sign?: Sign | undefined;
}

/** Bytes of a message of `kind`. MessageRejected: larger than MAX_MESSAGE_BYTES, which a broker drops unseen. */
export async function seal<K extends Kind>(kind: K, body: Bodies[K], options: SealOptions = {}): Promise<Uint8Array> {
  const id = options.id ?? messageId();
  const packed = encodeMsgpack(BODIES[kind], body);
  const signature = options.sign === undefined ? undefined : await options.sign(packed, kind, id);
  const writer = new MsgpackWriter();
  writer.map(signature === undefined ? 5 : 6);
  writer.text("v");
  writer.integer(VERSION);
  writer.text("id");
  writer.text(id);
  writer.text("kind");
  writer.text(kind);
  writer.text("sent_at");
  writer.float(options.sentAt ?? Date.now() / 1000);
  writer.text("body");
  writer.raw(packed);
  if (signature !== undefined) {
    writer.text("signature");
    writer.binary(signature);
  }
  const data = writer.finish();
  if (data.length > MAX_MESSAGE_BYTES) {
    throw new MessageRejected(
      `message '${kind}' of ${data.length} bytes is over ${MAX_MESSAGE_BYTES}; send it as blocks`,
    );
  }
  return data;
}

/** The envelope in `data`. UnsupportedVersion: `v` is not VERSION. MessageRejected: too large or malformed. */
export function unseal(data: Uint8Array): Envelope {
  checkSize(data, MAX_MESSAGE_BYTES, "Envelope");
  try {
    return parse(data);
  } catch (error) {
    if (error instanceof UnsupportedVersion) throw error;
    const why = error instanceof ApportionError ? error.message : String(error);
    throw new MessageRejected(`message of ${data.length} bytes cannot be read: ${why}; send it again`, {
      cause: error,
    });
  }
}

/** A new message's id: 128 random bits, hex. */
export function messageId(): string {
  return bytesToHex(crypto.getRandomValues(new Uint8Array(16)));
}

function parse(data: Uint8Array): Envelope {
  const reader = new MsgpackReader(data);
  const found = new Map<string, unknown>();
  let body: Uint8Array | undefined;
  const size = reader.mapSize();
  for (let i = 0; i < size; i++) {
    const key = text.read(reader.value(), "key in $");
    const from = reader.offset;
    found.set(key, reader.value());
    if (key === "body") body = data.subarray(from, reader.offset);
  }
  reader.end();
  const v = found.has("v") ? integer.read(found.get("v"), "$.v") : 0;
  if (v !== VERSION) {
    throw new UnsupportedVersion(`message version ${v}, this release speaks ${VERSION}; upgrade the older side`);
  }
  for (const name of ["id", "kind", "sent_at", "body"]) {
    if (!found.has(name)) throw new MessageRejected(`no field '${name}'`);
  }
  const exact = body ?? new Uint8Array(0);
  return {
    v,
    id: text.read(found.get("id"), "$.id"),
    kind: text.read(found.get("kind"), "$.kind"),
    sent_at: float.read(found.get("sent_at"), "$.sent_at"),
    body: exact,
    signature: found.has("signature") ? binary.read(found.get("signature"), "$.signature") : new Uint8Array(0),
    read: (kind) => decodeMsgpack(exact, kind, MAX_MESSAGE_BYTES),
  };
}
