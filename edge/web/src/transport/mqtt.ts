/**
 * One MQTT 3.1.1 connection over WebSockets, through MQTT.js.
 *
 * Sessions are clean: what a broker queued for an absent device is stale, both sides repeat what was not answered. For
 * the same reason every attempt is a client of its own, which keeps nothing from the one before. Denied and oversized
 * publishes are acknowledged and dropped by 3.1.1 brokers: completion is never read off a PUBACK.
 */

import mqtt, { type MqttClient } from "mqtt";
import { MAX_MESSAGE_BYTES } from "../contracts/envelope";
import { ConfigError, MessageRejected } from "../contracts/errors";
import type { Transport, TransportEvent } from "./transport";

/** Browsers run a hidden page's timers once a minute; a broker waits one and a half times as long as is said here. */
const KEEPALIVE_S = 60;
const CONNECT_MS = 10_000;
const FIRST_PAUSE_MS = 1_000;
const LAST_PAUSE_MS = 30_000;
const FAREWELL_MS = 2_000;
/** A broker that has just started may refuse everyone once. */
const REFUSALS = 2;

export interface LastWill {
  readonly topic: string;
  /** Sealed, and signed where the device signs: the broker sends it, when the device no longer can. */
  readonly payload: Uint8Array;
}

export interface MqttOptions {
  /** `wss://host:port[/path]`, or `ws://` on loopback. */
  readonly url: string;
  /** Device id: user name and client id. A second connection with the same one takes the first one's place. */
  readonly device: string;
  /** The device's own token. */
  readonly password: string;
  readonly subscriptions: readonly string[];
  readonly will: LastWill;
}

export class MqttTransport implements Transport {
  bytesSent = 0;
  bytesReceived = 0;
  readonly #options: MqttOptions;
  #deliver: (event: TransportEvent) => void = () => {};
  #client: MqttClient | null = null;
  #isConnected = false;
  #isStopping = false;
  #pauseMs = FIRST_PAUSE_MS;
  #refusals = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #onOnline = () => this.#again(0);
  /** A socket of a network that is gone may stay silent for minutes. */
  readonly #onOffline = () => this.#lost("the device is offline");

  constructor(options: MqttOptions) {
    checkUrl(options.url);
    this.#options = options;
  }

  start(deliver: (event: TransportEvent) => void): void {
    this.#deliver = deliver;
    globalThis.addEventListener?.("online", this.#onOnline);
    globalThis.addEventListener?.("offline", this.#onOffline);
    this.#connect();
  }

  publish(topic: string, payload: Uint8Array, qos: 0 | 1): void {
    if (payload.length > MAX_MESSAGE_BYTES) {
      throw new MessageRejected(`${topic}: ${payload.length} bytes are over ${MAX_MESSAGE_BYTES}; send them as blocks`);
    }
    if (!this.#isConnected || this.#client === null) return;
    this.bytesSent += payload.length;
    this.#client.publish(topic, payload as Buffer, { qos });
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    clearTimeout(this.#timer);
    globalThis.removeEventListener?.("online", this.#onOnline);
    globalThis.removeEventListener?.("offline", this.#onOffline);
    const client = this.#client;
    this.#client = null;
    if (client === null) return;
    // Waits for the acknowledgement of what was said last.
    this.#isConnected = false;
    await within(FAREWELL_MS, client.endAsync());
  }

  #connect(): void {
    const { url, device, password, subscriptions, will } = this.#options;
    const client = mqtt.connect(url, {
      clientId: device,
      username: device,
      password,
      protocolVersion: 4,
      clean: true,
      keepalive: KEEPALIVE_S,
      // Heartbeats would put off every ping, and a connection that is dead at the other end would never show.
      reschedulePings: false,
      connectTimeout: CONNECT_MS,
      reconnectPeriod: 0,
      resubscribe: false,
      queueQoSZero: false,
      // The other variant makes a worker of a blob URL, which the page's content security policy forbids.
      timerVariant: "native",
      will: { topic: will.topic, payload: will.payload as Buffer, qos: 1, retain: false },
    });
    this.#client = client;
    let why = "the connection was closed";
    client.on("error", (error) => {
      why = error.message;
      const code = "code" in error ? Number(error.code) : Number.NaN;
      if (client === this.#client && (code === 4 || code === 5)) this.#refused(`${url} refused '${device}': ${why}`);
    });
    client.on("connect", () => {
      const topics = Object.fromEntries(subscriptions.map((pattern) => [pattern, { qos: 1 as const }]));
      client.subscribe(topics, (error, granted) => {
        if (client !== this.#client) return;
        if (
          granted?.some((grant) => grant.qos === 128) ||
          (error && /unspecified|not authorized/i.test(error.message))
        ) {
          this.#refused(`${url} refused the subscriptions of '${device}'`);
        } else if (error) {
          client.end(true);
        } else {
          this.#pauseMs = FIRST_PAUSE_MS;
          this.#refusals = 0;
          this.#isConnected = true;
          this.#deliver({ type: "connected" });
        }
      });
    });
    client.on("message", (topic, payload) => {
      if (client !== this.#client) return;
      this.bytesReceived += payload.length;
      const plain = new Uint8Array(payload.buffer, payload.byteOffset, payload.length);
      this.#deliver({ type: "received", topic, payload: plain });
    });
    client.on("close", () => {
      if (client === this.#client) this.#lost(why);
    });
  }

  #lost(reason: string): void {
    if (this.#client === null) return;
    this.#client.removeAllListeners("close");
    this.#client.end(true);
    this.#client = null;
    if (this.#isStopping) return;
    this.#isConnected = false;
    this.#deliver({ type: "disconnected", reason });
    // Half of the pause is drawn: after a broker's restart not everyone comes in the same second.
    const pause = this.#pauseMs * (0.5 + 0.5 * Math.random());
    this.#pauseMs = Math.min(LAST_PAUSE_MS, 2 * this.#pauseMs);
    this.#again(pause);
  }

  #refused(reason: string): void {
    this.#refusals += 1;
    if (this.#refusals < REFUSALS) {
      this.#lost(reason);
      return;
    }
    this.#isStopping = true;
    clearTimeout(this.#timer);
    this.#client?.end(true);
    this.#client = null;
    this.#isConnected = false;
    this.#deliver({ type: "denied", reason: `${reason}; join again by a new link` });
  }

  #again(pauseMs: number): void {
    if (this.#isStopping || this.#client !== null) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), pauseMs);
  }
}

function checkUrl(url: string): void {
  const { protocol, hostname } = new URL(url);
  const isLoopback = ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
  if (protocol === "wss:" || (protocol === "ws:" && isLoopback)) return;
  throw new ConfigError([`broker: ${protocol}//${hostname} is not wss://, which everything but loopback must be`]);
}

async function within(ms: number, promise: Promise<unknown>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms);
  });
  await Promise.race([promise.catch(() => {}), late]);
  clearTimeout(timer);
}
