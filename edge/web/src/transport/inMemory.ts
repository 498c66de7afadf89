/**
 * A broker inside one process, with MQTT's semantics as far as this project relies on them: wildcards, last wills,
 * order per topic, and a broker that can go away and come back. For tests and for simulations in one page.
 */

import { MAX_MESSAGE_BYTES } from "../contracts/envelope";
import { MessageRejected } from "../contracts/errors";
import type { LastWill } from "./mqtt";
import type { Transport, TransportEvent } from "./transport";

export class InMemoryBroker {
  /** When set, messages for which it gives true are lost, as those of QoS 0 may be. */
  drop: ((topic: string, payload: Uint8Array, qos: 0 | 1) => boolean) | null = null;
  /** When set, whoever connects is refused with this reason. */
  denial: string | null = null;
  readonly #clients = new Set<InMemoryTransport>();
  #isUp = true;

  get isUp(): boolean {
    return this.#isUp;
  }

  /** Cuts every connection and refuses new ones. */
  stop(): void {
    this.#isUp = false;
    for (const client of this.#clients) client.lost("broker stopped");
  }

  /** Takes connections again; the clients reconnect at once. */
  start(): void {
    this.#isUp = true;
    for (const client of this.#clients) client.regained();
  }

  join(client: InMemoryTransport): void {
    this.#clients.add(client);
    if (this.#isUp) client.regained();
  }

  /** `withWill` as if its process had died. */
  leave(client: InMemoryTransport, withWill: boolean): void {
    if (this.#clients.delete(client) && withWill && client.will !== null) {
      this.route(client.will.topic, client.will.payload, 1);
    }
  }

  route(topic: string, payload: Uint8Array, qos: 0 | 1): void {
    if (!this.#isUp || this.drop?.(topic, payload, qos)) return;
    for (const client of this.#clients) {
      if (client.subscriptions.some((pattern) => matches(pattern, topic))) client.receive(topic, payload);
    }
  }
}

export class InMemoryTransport implements Transport {
  bytesSent = 0;
  bytesReceived = 0;
  #deliver: (event: TransportEvent) => void = () => {};

  constructor(
    readonly broker: InMemoryBroker,
    readonly subscriptions: readonly string[],
    readonly will: LastWill | null = null,
  ) {}

  start(deliver: (event: TransportEvent) => void): void {
    this.#deliver = deliver;
    if (this.broker.denial !== null) deliver({ type: "denied", reason: this.broker.denial });
    else this.broker.join(this);
  }

  publish(topic: string, payload: Uint8Array, qos: 0 | 1): void {
    if (payload.length > MAX_MESSAGE_BYTES) {
      throw new MessageRejected(`${topic}: ${payload.length} bytes are over ${MAX_MESSAGE_BYTES}; send them as blocks`);
    }
    this.bytesSent += payload.length;
    this.broker.route(topic, payload.slice(), qos);
  }

  async stop(): Promise<void> {
    this.broker.leave(this, false);
  }

  /** As if the tab had been killed. */
  die(): void {
    this.#deliver = () => {};
    this.broker.leave(this, true);
  }

  receive(topic: string, payload: Uint8Array): void {
    this.bytesReceived += payload.length;
    this.#deliver({ type: "received", topic, payload });
  }

  lost(reason: string): void {
    this.#deliver({ type: "disconnected", reason });
  }

  regained(): void {
    this.#deliver(this.broker.denial === null ? { type: "connected" } : { type: "denied", reason: this.broker.denial });
  }
}

/** Whether an MQTT filter takes in a topic. */
export function matches(pattern: string, topic: string): boolean {
  const wanted = pattern.split("/");
  const parts = topic.split("/");
  for (const [index, part] of wanted.entries()) {
    if (part === "#") return true;
    if (index >= parts.length || (part !== "+" && part !== parts[index])) return false;
  }
  return wanted.length === parts.length;
}
