/** How messages reach a broker. Which messages, and what they mean, is the agent's business. */

export type TransportEvent =
  | { readonly type: "connected" }
  | { readonly type: "disconnected"; readonly reason: string }
  /** The broker refuses this device: its token is wrong or was revoked. No further attempt is made. */
  | { readonly type: "denied"; readonly reason: string }
  | { readonly type: "received"; readonly topic: string; readonly payload: Uint8Array };

export interface Transport {
  /** Connects and stays connected, with growing pauses between attempts; events go to `deliver`, in order. */
  start(deliver: (event: TransportEvent) => void): void;
  /** Sends when connected; a message that cannot be sent now is dropped: every request is repeated by its sender. */
  publish(topic: string, payload: Uint8Array, qos: 0 | 1): void;
  /** Bytes of payloads so far. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
  stop(): Promise<void>;
}
