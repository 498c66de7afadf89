/** What a device sends: sealed, signed, on its own topics, in the order it was said, and hello first of all. */

import { type Sign, seal } from "../contracts/envelope";
import type { Bodies, Kind } from "../contracts/messages";
import * as topics from "../contracts/topics";
import type { LastWill } from "../transport/mqtt";
import type { Transport } from "../transport/transport";
import type { StatusBoard } from "./status";

/** Messages without an id get a random one. */
export type Send = <K extends Kind>(kind: K, body: Bodies[K], qos?: 0 | 1, id?: string) => void;

export class Outbox {
  /** Counts connections, which hello begins: what was said on an earlier one, or before hello, is dropped. */
  #connection = 0;
  #isConnected = false;
  #hasGreeted = false;
  /** Signing takes its time, and what is said first has to leave first. */
  #last: Promise<void> = Promise.resolve();

  constructor(
    private readonly transport: Transport,
    private readonly status: StatusBoard,
    private readonly federation: string,
    private readonly device: string,
    private readonly sign: Sign | undefined,
  ) {}

  get isConnected(): boolean {
    return this.#isConnected;
  }

  connected(): void {
    this.#connection += 1;
    this.#isConnected = true;
    this.#hasGreeted = false;
  }

  disconnected(): void {
    this.#isConnected = false;
  }

  /**
   * Without a connection, and before its hello, nothing is queued: hello and the messages that are repeated until
   * answered say it all again afterwards.
   */
  readonly send: Send = (kind, body, qos = 1, id) => {
    this.#hasGreeted ||= kind === "hello";
    if (!this.#isConnected || !(this.#hasGreeted || kind === "bye")) return;
    const connection = this.#connection;
    const options = id === undefined ? { sign: this.sign } : { sign: this.sign, id };
    const sealed = seal(kind, body, options);
    sealed.catch(() => {}); // told below, in its turn
    this.#last = this.#last.then(async () => {
      try {
        const payload = await sealed;
        if (!this.#isConnected || connection !== this.#connection) return;
        this.transport.publish(topics.up(this.federation, this.device, kind), payload, qos);
        this.status.passed(true, kind, payload.length);
      } catch (error) {
        this.status.failed("not-sent", `message '${kind}' was not sent: ${String(error)}`);
      }
    });
  };

  /** Resolves when everything that was said has left. */
  async flushed(): Promise<void> {
    await this.#last;
  }
}

/** The `bye` of a device; as its last will the reason is `connection lost`. */
export async function farewell(federation: string, device: string, reason: string, sign?: Sign): Promise<LastWill> {
  return { topic: topics.up(federation, device, "bye"), payload: await seal("bye", { reason }, { sign }) };
}
