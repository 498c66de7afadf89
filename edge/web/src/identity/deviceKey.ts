/**
 * This device's own key: ECDSA on P-256, made by WebCrypto, whose private half no script can read, this one included.
 * It can be kept in IndexedDB and used, not copied.
 */

import { ConfigError } from "../contracts/errors";
import { toBase64 } from "./base64";

const KIND = { name: "ECDSA", namedCurve: "P-256" } as const;
const SIGNING = { name: "ECDSA", hash: "SHA-256" } as const;

export class DeviceKey {
  /** @param pair as Records keep it */
  constructor(readonly pair: CryptoKeyPair) {}

  /** A new key. ConfigError where the page has no WebCrypto. */
  static async make(): Promise<DeviceKey> {
    if (globalThis.crypto?.subtle === undefined) {
      throw new ConfigError(["this page: browsers keep keys on https:// and on this machine alone"], {
        hint: "open the link with https://",
      });
    }
    // Of a pair only the private half follows `extractable`; the public half can always be exported.
    return new DeviceKey(await crypto.subtle.generateKey(KIND, false, ["sign", "verify"]));
  }

  /** The public key: base64 of the DER SubjectPublicKeyInfo. */
  async publicKey(): Promise<string> {
    return toBase64(new Uint8Array(await crypto.subtle.exportKey("spki", this.pair.publicKey)));
  }

  /** r and s, 32 bytes each. */
  async sign(message: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
    const data = message as Uint8Array<ArrayBuffer>;
    return new Uint8Array(await crypto.subtle.sign(SIGNING, this.pair.privateKey, data));
  }
}
