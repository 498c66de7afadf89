/** Events in the order in which they came, for one taker. */

/** Of what others send: some windows of blocks and a few orders. What is over it comes again, or was of nobody honest. */
const MOST_WAITING_BYTES = 4 << 20;
/** What a message takes beside its payload. */
const LEAST_BYTES = 256;

export class EventQueue<T> {
  #events: T[] = [];
  #taker: ((event: T) => void) | null = null;
  #waitingBytes = 0;

  /** @param payloadBytes of what others send; undefined for events of this device's own, which always have room */
  constructor(private readonly payloadBytes: (event: T) => number | undefined = () => undefined) {}

  put(event: T): void {
    const taker = this.#taker;
    this.#taker = null;
    if (taker !== null) {
      taker(event);
      return;
    }
    const bytes = this.#bytesOf(event);
    if (bytes > 0 && this.#waitingBytes + bytes > MOST_WAITING_BYTES) return;
    this.#waitingBytes += bytes;
    this.#events.push(event);
  }

  /** Puts `event` unless it waits already. */
  putOnce(event: T): void {
    if (!this.#events.includes(event)) this.put(event);
  }

  async take(): Promise<T> {
    if (this.#events.length > 0) {
      const event = this.#events.shift() as T;
      this.#waitingBytes -= this.#bytesOf(event);
      return event;
    }
    return new Promise((resolve) => {
      this.#taker = resolve;
    });
  }

  #bytesOf(event: T): number {
    const bytes = this.payloadBytes(event);
    return bytes === undefined ? 0 : bytes + LEAST_BYTES;
  }
}
