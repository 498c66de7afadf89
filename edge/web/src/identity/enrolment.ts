/**
 * Enrolment by a claim link: this device makes its key, proves with the token who it is, and gets its place.
 *
 * A key under which a claim was sent is kept until the claim is answered: the same link with the same key may be
 * repeated, so an answer that was lost costs nothing. Enrolment and key are one record: they never disagree.
 */

import { sha256 } from "@noble/hashes/sha2";
import { bytesToHex } from "@noble/hashes/utils";
import {
  type ClaimLink,
  ClaimRefusal,
  isLoopback,
  KEY_CLAIM_PATH,
  KeyClaimReply,
  KeyClaimRequest,
  MAX_REPLY_BYTES,
} from "../contracts/claims";
import { decodeJson, encodeJson } from "../contracts/codec";
import { EnrolmentFailed, MessageRejected } from "../contracts/errors";
import { claimText } from "../contracts/signing";
import { checkName } from "../contracts/topics";
import type { Records } from "../store/records";
import { toBase64 } from "./base64";
import { DeviceKey } from "./deviceKey";
import { Trust } from "./trust";

const ENROLLED = "identity/enrolled";
const CLAIMED = "identity/claimed";
const TIMEOUT_MS = 20_000;

/** Who this device is and where it belongs. */
export interface Enrolment {
  readonly device: string;
  readonly federation: string;
  /** `wss://host:port[/path]`, or `ws://` on the same machine. */
  readonly broker: string;
  readonly user: string;
  readonly password: string;
  /** PEM of the key that checks orders. */
  readonly signing_public: string;
  /** Seconds since 1970. */
  readonly claimed_at: number;
}

interface Claimed {
  /** Of the token, which is a secret as long as it is good. */
  readonly tokenDigest: string;
  readonly pair: CryptoKeyPair;
}

interface Enrolled extends Claimed {
  readonly enrolment: Enrolment;
}

export interface EnrolOptions {
  readonly records: Records;
  readonly fetch?: typeof globalThis.fetch;
}

/** What is kept, if this device is enrolled. */
export async function enrolment(records: Records): Promise<Enrolment | null> {
  return (await standingOf(records))?.enrolment ?? null;
}

/** The key that belongs to the enrolment. */
export async function enrolledKey(records: Records): Promise<DeviceKey | null> {
  const kept = await standingOf(records);
  return kept === null ? null : new DeviceKey(kept.pair);
}

/** A browser that frees storage may drop a key and keep its record: this device is enrolled no more then. */
async function standingOf(records: Records): Promise<Enrolled | null> {
  const kept = await records.get<Enrolled>(ENROLLED);
  return kept?.pair?.privateKey === undefined ? null : kept;
}

/** Enrolment and keys are gone for good; at the coordinator the device stays known until it is revoked there. */
export async function forget(records: Records): Promise<void> {
  await records.delete(ENROLLED);
  await records.delete(CLAIMED);
}

/**
 * This device's enrolment, claimed with `link`, or the standing one when this very link made it (the page was opened
 * again). What it was enrolled as before is replaced when that has worked.
 * EnrolmentFailed: the service cannot be reached, refuses, or answers what cannot be used. Then nothing is replaced.
 */
export async function enrol(link: ClaimLink, options: EnrolOptions): Promise<Enrolment> {
  const { records } = options;
  const tokenDigest = bytesToHex(sha256(new TextEncoder().encode(link.token)));
  const standing = await standingOf(records);
  if (standing?.tokenDigest === tokenDigest) return standing.enrolment;
  const begun = await records.get<Claimed>(CLAIMED);
  if (begun?.tokenDigest === tokenDigest) return claim(link, begun, options);
  // Every link gets a key of its own: a coordinator makes one for a known device only after its key was revoked.
  return claim(link, { tokenDigest, pair: (await DeviceKey.make()).pair }, options);
}

/** Claims with the key of `claimed`, which is in the records before anything is sent. */
async function claim(link: ClaimLink, claimed: Claimed, { records, fetch }: EnrolOptions): Promise<Enrolment> {
  await records.put(CLAIMED, claimed);
  const key = new DeviceKey(claimed.pair);
  const publicKey = await key.publicKey();
  const request: KeyClaimRequest = {
    token: link.token,
    public_key: publicKey,
    proof: toBase64(await key.sign(claimText(link.token, publicKey))),
  };
  const { status, body } = await post(link.service, request, fetch ?? globalThis.fetch.bind(globalThis));
  if (status !== 200) {
    const failure = refusal(link.service, status, body);
    // Refused for good: the key is of no further use. A service that is busy or broken is asked again with it.
    if (status >= 400 && status < 500 && status !== 429) await records.delete(CLAIMED);
    throw failure;
  }
  const reply = checkedReply(link, body);
  const made: Enrolment = { ...reply, claimed_at: Date.now() / 1000 };
  await records.put(ENROLLED, { ...claimed, enrolment: made } satisfies Enrolled);
  await records.delete(CLAIMED);
  return made;
}

async function post(
  service: string,
  request: KeyClaimRequest,
  fetch: typeof globalThis.fetch,
): Promise<{ status: number; body: Uint8Array }> {
  let isAnswered = false;
  try {
    const answer = await fetch(service + KEY_CLAIM_PATH, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: encodeJson(KeyClaimRequest, request),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    isAnswered = true;
    return { status: answer.status, body: new Uint8Array(await answer.arrayBuffer()) };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    if (isAnswered) {
      throw new EnrolmentFailed("answer-lost", `the connection to ${service} ended before its answer (${why})`, {
        hint: "open the same link again: it goes on where this ended",
        cause: error,
      });
    }
    throw new EnrolmentFailed("service-unreachable", `${service} cannot be reached (${why})`, {
      hint: "is this device in the same network, and does the coordinator run? then open the same link again",
      cause: error,
    });
  }
}

function refusal(service: string, status: number, body: Uint8Array): EnrolmentFailed {
  try {
    const { code, message, hint } = decodeJson(body, ClaimRefusal, MAX_REPLY_BYTES).error;
    return new EnrolmentFailed(code, `${service} refused: ${message}`, { hint });
  } catch (error) {
    return notAService(service, status, error);
  }
}

function notAService(service: string, status: number, error: unknown): EnrolmentFailed {
  const why = error instanceof Error ? error.message : String(error);
  return new EnrolmentFailed(
    "not-a-claim-service",
    `${service} answered ${status} and nothing that can be read (${why})`,
    { hint: "see that the coordinator has the release that this page is of", cause: error },
  );
}

function checkedReply(link: ClaimLink, body: Uint8Array): KeyClaimReply {
  let reply: KeyClaimReply;
  try {
    reply = decodeJson(body, KeyClaimReply, MAX_REPLY_BYTES);
  } catch (error) {
    throw notAService(link.service, 200, error);
  }
  try {
    checkName(reply.device, "device");
    checkName(reply.federation, "federation");
    if (link.device !== "" && reply.device !== link.device) {
      throw new MessageRejected(`it is for device '${reply.device}', the link is for '${link.device}'`);
    }
    checkBroker(reply.broker);
    if (reply.user !== reply.device || reply.password === "") {
      throw new MessageRejected(
        `it has user '${reply.user.slice(0, 80)}' for device '${reply.device}', or no password`,
      );
    }
    Trust.fromPem(reply.signing_public);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new EnrolmentFailed("bad-reply", `what ${link.service} sent cannot be used (${why}); nothing was kept`, {
      hint: "see at the coordinator what it serves: apportion device claims",
      cause: error,
    });
  }
  return reply;
}

function checkBroker(broker: string): void {
  const url = parsed(broker);
  const isSafe = url?.protocol === "wss:" || (url?.protocol === "ws:" && isLoopback(url.hostname));
  if (!isSafe) throw new MessageRejected(`broker '${broker.slice(0, 80)}' is not wss://host:port`);
}

function parsed(address: string): URL | null {
  try {
    return new URL(address);
  } catch {
    return null;
  }
}
