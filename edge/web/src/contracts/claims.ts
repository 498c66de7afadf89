/**
 * A claim from a browser: the token of a link and this device's public key, for a place at the broker.
 *
 * `POST /v1/claim-key` takes a KeyClaimRequest and gives a KeyClaimReply or a ClaimRefusal, as JSON.
 */

import { ConfigError } from "./errors";
import { defaulted, type Struct, struct, text } from "./shapes";
import { checkName } from "./topics";

export const KEY_CLAIM_PATH = "/v1/claim-key";
export const JOIN_PATH = "/join";
export const MAX_REPLY_BYTES = 65_536;

const TOKEN = /^[0-9a-f]{16}\.[A-Za-z0-9_-]{43}$/;
const PIN = /^[A-Za-z0-9_-]{43}$/;
const AGAIN = "copy the whole link, or have another made at the coordinator";

/** `public_key`: base64 of the SPKI DER; `proof`: base64 of the signature over `claimText(token, public_key)`. */
export interface KeyClaimRequest {
  readonly token: string;
  readonly public_key: string;
  readonly proof: string;
}
export const KeyClaimRequest: Struct<KeyClaimRequest> = struct<KeyClaimRequest>("KeyClaimRequest", {
  token: text,
  public_key: text,
  proof: text,
});

/** Where to go and who this device is there; `signing_public` is the PEM of the key that checks orders. */
export interface KeyClaimReply {
  readonly device: string;
  readonly federation: string;
  /** `wss://host:port[/path]`, or `ws://` on the same machine. */
  readonly broker: string;
  readonly user: string;
  readonly password: string;
  readonly signing_public: string;
}
export const KeyClaimReply: Struct<KeyClaimReply> = struct<KeyClaimReply>("KeyClaimReply", {
  device: text,
  federation: text,
  broker: text,
  user: text,
  password: text,
  signing_public: text,
});

/** Why not: a stable name, what happened, what to do. */
export interface Refused {
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}
export const Refused: Struct<Refused> = struct<Refused>("Refused", {
  code: text,
  message: text,
  hint: defaulted(text, ""),
});

/** What a device gets instead of a reply. */
export interface ClaimRefusal {
  readonly error: Refused;
}
export const ClaimRefusal: Struct<ClaimRefusal> = struct<ClaimRefusal>("ClaimRefusal", { error: Refused });

/** An invitation: where to claim, with which token. Whoever has it can claim. */
export interface ClaimLink {
  /** `https://host:port`, or `http://` of the same machine. */
  readonly service: string;
  readonly token: string;
  /** SHA-256 of the root's certificate, 64 hex digits; a browser has its own roots and cannot compare it. */
  readonly pin: string;
  /** The id the token is for; empty where the link does not say. */
  readonly device: string;
}

/** The link's parts; ConfigError says what is wrong with it and never shows its token. */
export function parseClaimLink(link: string): ClaimLink {
  let url: URL;
  try {
    url = new URL(link.trim());
  } catch (error) {
    throw new ConfigError(["LINK: not a link"], { hint: AGAIN, cause: error });
  }
  const values = new URLSearchParams(url.hash.slice(1));
  const [token, pin, device] = ["t", "p", "d"].map((name) => values.get(name) ?? "") as [string, string, string];
  const problems: string[] = [];
  const isSafe = url.protocol === "https:" || (url.protocol === "http:" && isLoopback(url.hostname));
  if (!isSafe || url.hostname === "" || url.pathname !== JOIN_PATH) {
    problems.push(`LINK: is not https://host:port${JOIN_PATH}#...`);
  }
  if (!TOKEN.test(token)) problems.push("LINK: has no token after '#t='");
  if (!PIN.test(pin)) problems.push("LINK: has no pin after '&p='");
  try {
    if (device !== "") checkName(device, "LINK: device");
  } catch (error) {
    problems.push((error as Error).message);
  }
  if (problems.length > 0) throw new ConfigError(problems, { hint: AGAIN });
  const port = url.port || (url.protocol === "https:" ? "443" : "80");
  return { service: `${url.protocol}//${url.hostname}:${port}`, token, pin: fromBase64Url(pin), device };
}

/** Whether a host is this machine itself, where a connection without TLS is not overheard. */
export function isLoopback(hostname: string): boolean {
  return ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
}

/** Hex of base64url without padding. */
function fromBase64Url(value: string): string {
  const bytes = atob(`${value.replaceAll("-", "+").replaceAll("_", "/")}=`);
  return Array.from(bytes, (byte) => byte.charCodeAt(0).toString(16).padStart(2, "0")).join("");
}
