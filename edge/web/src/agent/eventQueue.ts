/** Events in the order in which they came, for one taker. */

export class EventQueue<T> {
  #events: T[] = [];
  #taker: ((event: T) => void) | null = null;

  put(event: T): void {
    const taker = this.#taker;
    this.#taker = null;
    if (taker === null) this.#events.push(event);
    else taker(event);
  }

  /** Puts `event` unless it waits already. */
  putOnce(event: T): void {
    if (!this.#events.includes(event)) this.put(event);
  }

  async take(): Promise<T> {
    if (this.#events.length > 0) return this.#events.shift() as T;
    return new Promise((resolve) => {
      this.#taker = resolve;
    });
  }
}
