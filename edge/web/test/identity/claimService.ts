/** A claim service as the coordinator's, over HTTP on this machine: tokens, proofs, repeats, and how it can fail. */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type ClaimLink, KEY_CLAIM_PATH, KeyClaimRequest } from "../../src/contracts/claims";
import { decodeJson } from "../../src/contracts/codec";
import { claimText } from "../../src/contracts/signing";
import { fromBase64 } from "../../src/identity/base64";

const ECDSA = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;
export const SIGNING_PUBLIC =
  "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n";

/** How the next answer goes wrong: the claim is taken and nothing comes back, half of it does, or this comes instead. */
export type Failure = "cut" | "half" | { status: number; body: string };

export class ClaimService {
  /** Token -> the public key that claimed it; empty until one has. */
  readonly tokens = new Map<string, string>();
  /** The key that the device has, and keys that it must not have any more. */
  standing = "";
  readonly revoked = new Set<string>();
  readonly failures: Failure[] = [];
  /** Changes to a good reply. */
  changes: Record<string, unknown> = {};
  claims = 0;
  private readonly server: Server;

  constructor() {
    this.server = createServer((request, response) => void this.answer(request, response));
  }

  async start(): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  link(device = "phone-1"): ClaimLink {
    const token = `0123456789abcdef.${String(this.tokens.size).padStart(43, "S")}`;
    this.tokens.set(token, "");
    const { port } = this.server.address() as AddressInfo;
    return { service: `http://127.0.0.1:${port}`, token, pin: "a1".repeat(32), device };
  }

  /** The device's key is revoked; another may come. */
  revoke(): void {
    this.revoked.add(this.standing);
    this.standing = "";
  }

  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Uint8Array[] = [];
    for await (const part of request) parts.push(part as Uint8Array);
    if (request.method !== "POST" || request.url !== KEY_CLAIM_PATH) {
      response.writeHead(404).end();
      return;
    }
    const [status, body] = await this.claim(new Uint8Array(Buffer.concat(parts)));
    const failure = this.failures.shift();
    if (failure === "cut") request.socket.destroy();
    else if (failure === "half") {
      response.writeHead(status, { "Content-Length": body.length }).write(body.slice(0, 10), () => response.destroy());
    } else if (failure !== undefined) response.writeHead(failure.status).end(failure.body);
    else response.writeHead(status, { "Content-Type": "application/json" }).end(body);
  }

  private async claim(data: Uint8Array): Promise<[number, string]> {
    const { token, public_key, proof } = decodeJson(data, KeyClaimRequest, 24_576);
    const refused = (status: number, code: string): [number, string] => {
      return [status, JSON.stringify({ error: { code, message: `${code} it is`, hint: "make another" } })];
    };
    const claimedBy = this.tokens.get(token);
    if (claimedBy === undefined) return refused(403, "no-such-token");
    const key = await crypto.subtle.importKey("spki", fromBase64(public_key), ECDSA, false, ["verify"]);
    const isProved = await crypto.subtle.verify(ECDSA, key, fromBase64(proof), claimText(token, public_key));
    if (!isProved) return refused(422, "identity-refused");
    if (claimedBy !== "" && claimedBy !== public_key) return refused(410, "token-used");
    const isAnother = this.standing !== "" && this.standing !== public_key;
    if (isAnother || this.revoked.has(public_key)) return refused(422, "identity-refused");
    this.tokens.set(token, public_key);
    this.standing = public_key;
    this.claims++;
    const reply = {
      device: "phone-1",
      federation: "digits",
      broker: "ws://127.0.0.1:8083",
      user: "phone-1",
      password: `password-${this.claims}`,
      signing_public: SIGNING_PUBLIC,
      ...this.changes,
    };
    return [200, JSON.stringify(reply)];
  }
}
