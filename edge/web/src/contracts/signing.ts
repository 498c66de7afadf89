/**
 * What exactly is signed. Orders and manifests: Ed25519, by the coordinator. Messages and the claim of a device that was
 * enrolled with a key of its own: ECDSA P-256 with SHA-256, `r || s` as WebCrypto gives it. All signatures: 64 bytes.
 */

import { MessageRejected } from "./errors";

export const SIGNATURE_BYTES = 64;
export const ORDER_CONTEXT = "apportion.order/1\n";
export const MESSAGE_CONTEXT = "apportion.message/1\n";
export const CLAIM_CONTEXT = "apportion.claim/1\n";

const TEXT = new TextEncoder();

/** The bytes that are signed for an order whose body, as it travels, is `body`. */
export function orderMessage(body: Uint8Array): Uint8Array<ArrayBuffer> {
  return joined(ORDER_CONTEXT, body);
}

/** The bytes that a device signs for a message, good for no other federation, device, kind or message id. */
export function messageText(
  federation: string,
  device: string,
  kind: string,
  id: string,
  body: Uint8Array,
): Uint8Array<ArrayBuffer> {
  const texts = [federation, device, kind, id];
  // A line feed would let parts be read as other parts.
  if (texts.some((text) => text.includes("\n"))) {
    throw new MessageRejected("a federation, device, kind or message id with a line feed cannot be signed");
  }
  return joined(MESSAGE_CONTEXT + texts.map((text) => `${text}\n`).join(""), body);
}

/** The bytes that prove, with a claim, that the claimant has the private key; `publicKey` is the base64 of the request. */
export function claimText(token: string, publicKey: string): Uint8Array<ArrayBuffer> {
  return TEXT.encode(`${CLAIM_CONTEXT}${token}\n${publicKey}`);
}

function joined(head: string, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const first = TEXT.encode(head);
  const whole = new Uint8Array(first.length + body.length);
  whole.set(first);
  whole.set(body, first.length);
  return whole;
}
