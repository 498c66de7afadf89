/** Whose orders this device follows: the public keys of its claim, and the checks of orders and manifests. */

import { ConfigError, SignatureRejected } from "../contracts/errors";
import type { WorkOrder } from "../contracts/plan";
import { orderMessage, SIGNATURE_BYTES } from "../contracts/signing";
import { fromBase64 } from "./base64";
import { verifyEd25519 } from "./ed25519";

/** DER of SubjectPublicKeyInfo for Ed25519 (RFC 8410), without the 32 bytes of the key that follow. */
const SPKI_HEAD = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const KEY_BYTES = 32;
const PEM = /-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]*)-----END PUBLIC KEY-----/g;

export class Trust {
  /** Any one of the keys is enough: while keys are changed, a device trusts two. */
  private constructor(private readonly keys: readonly Uint8Array[]) {}

  /** The keys in `pem`, one after the other. ConfigError: none, another kind of key, or something else beside them. */
  static fromPem(pem: string): Trust {
    const keys = Array.from(pem.matchAll(PEM), (match) => publicKey(match[1] ?? ""));
    if (keys.length === 0 || pem.replace(PEM, "").trim() !== "") {
      throw new ConfigError(["the key that checks orders is not PEM"], { hint: "enrol with a new link" });
    }
    return new Trust(keys);
  }

  /** Nothing when one of the keys has signed `body`, the exact bytes `order` was read from; else SignatureRejected. */
  async checkOrder(order: WorkOrder, body: Uint8Array, signature: Uint8Array): Promise<void> {
    const what = `order ${order.assignment_id.slice(0, 12)} of round ${order.round}`;
    await this.check(orderMessage(body), signature, what, order.assignment_id);
  }

  /** Nothing when one of the keys has signed the manifest `data`; else SignatureRejected. */
  async checkManifest(data: Uint8Array, signature: Uint8Array): Promise<void> {
    await this.check(data, signature, `manifest of ${data.length} bytes`, "");
  }

  private async check(message: Uint8Array, signature: Uint8Array, what: string, assignmentId: string): Promise<void> {
    const known = `${this.keys.length} trusted key${this.keys.length > 1 ? "s" : ""}`;
    if (signature.length === 0) {
      throw new SignatureRejected(
        `${what} is not signed and this device has ${known}; give the coordinator its identity ([broker] identity)`,
        { assignmentId },
      );
    }
    if (signature.length === SIGNATURE_BYTES) {
      for (const key of this.keys) if (await verifyEd25519(key, message, signature)) return;
    }
    const size = signature.length === SIGNATURE_BYTES ? "" : ` of ${signature.length} bytes`;
    throw new SignatureRejected(
      `${what} has a signature${size} by none of the ${known}, or was changed on its way; ` +
        "if the coordinator's identity was made anew, enrol with a new link",
      { assignmentId },
    );
  }
}

function publicKey(base64: string): Uint8Array {
  let der: Uint8Array;
  try {
    der = fromBase64(base64.replaceAll(/\s/g, ""));
  } catch (error) {
    throw new ConfigError(["the key that checks orders is not base64"], { cause: error });
  }
  if (der.length !== SPKI_HEAD.length + KEY_BYTES || SPKI_HEAD.some((byte, index) => der[index] !== byte)) {
    throw new ConfigError(["the key that checks orders is no Ed25519 key"], { hint: "enrol with a new link" });
  }
  return der.slice(SPKI_HEAD.length);
}
