/**
 * What exactly is signed. Orders and manifests: Ed25519, by the coordinator. Messages of a device that was enrolled
 * with a key of its own: ECDSA P-256 with SHA-256, r and s of 32 bytes each. All signatures have 64 bytes.
 */

export const SIGNATURE_BYTES = 64;
export const ORDER_CONTEXT = "apportion.order/1\n";
export const MESSAGE_CONTEXT = "apportion.message/1";
export const CLAIM_CONTEXT = "apportion.claim/1";

const TEXT = new TextEncoder();

/** The bytes that are signed for an order whose body, as it travels, is `body`. */
export function orderMessage(body: Uint8Array): Uint8Array<ArrayBuffer> {
  return joined(ORDER_CONTEXT, body);
}

/** What comes before a device's message, so that it is good for no other federation, device, kind or message. */
export function messageContext(federation: string, device: string, kind: string, id: string): string {
  return `${MESSAGE_CONTEXT}\n${federation}\n${device}\n${kind}\n${id}\n`;
}

/** The bytes that a device signs for a message: its context, and the body as it travels. */
export function deviceMessage(context: string, body: Uint8Array): Uint8Array<ArrayBuffer> {
  return joined(context, body);
}

/** The bytes that prove, with a claim, that the claimant has the private key. `publicKey` as it is sent, base64. */
export function claimProof(token: string, publicKey: string): Uint8Array<ArrayBuffer> {
  return TEXT.encode(`${CLAIM_CONTEXT}\n${token}\n${publicKey}`);
}

function joined(head: string, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const first = TEXT.encode(head);
  const whole = new Uint8Array(first.length + body.length);
  whole.set(first);
  whole.set(body, first.length);
  return whole;
}
