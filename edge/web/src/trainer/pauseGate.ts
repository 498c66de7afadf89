/** What a training passes between two steps: messages are heard there, and while it is closed nothing passes. */

export class PauseGate {
  #opened: Promise<void> | null = null;
  #open: () => void = () => undefined;
  readonly #channel = new MessageChannel();

  close(): void {
    this.#opened ??= new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  open(): void {
    this.#open();
    this.#opened = null;
  }

  /** Resolves after the messages that wait by now, as soon as the gate is open. */
  async pass(): Promise<void> {
    await this.#turn();
    while (this.#opened !== null) await this.#opened;
  }

  /** One turn of the event loop; a timer would wait for 4 ms. */
  #turn(): Promise<void> {
    return new Promise((resolve) => {
      this.#channel.port1.onmessage = () => resolve();
      this.#channel.port2.postMessage(null);
    });
  }
}
