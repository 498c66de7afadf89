/** Ed25519 (RFC 8032): by WebCrypto where it has it, else in JavaScript. Both were compared on the protocol's vectors. */

import { ed25519 } from "@noble/curves/ed25519";

const KIND = "Ed25519";

/** Whether `signature` over `message` was made with the key whose public half is `publicKey` [32 bytes]. */
export async function verifyEd25519(
  publicKey: Uint8Array,
  message: Uint8Array,
  signature: Uint8Array,
): Promise<boolean> {
  const key = await imported(publicKey);
  if (key === null) return verifyInScript(publicKey, message, signature);
  return crypto.subtle.verify(KIND, key, signature as Uint8Array<ArrayBuffer>, message as Uint8Array<ArrayBuffer>);
}

/** The same, without WebCrypto. */
export function verifyInScript(publicKey: Uint8Array, message: Uint8Array, signature: Uint8Array): boolean {
  try {
    // RFC 8032 as OpenSSL reads it, not the wider rules of ZIP 215.
    return ed25519.verify(signature, message, publicKey, { zip215: false });
  } catch {
    return false; // a signature of another length, or no point of the curve
  }
}

async function imported(publicKey: Uint8Array): Promise<CryptoKey | null> {
  try {
    return await crypto.subtle.importKey("raw", publicKey as Uint8Array<ArrayBuffer>, KIND, false, ["verify"]);
  } catch {
    return null; // NotSupportedError: browsers before 2025 have P-256 and no Ed25519
  }
}
