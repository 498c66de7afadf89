/** Keeps the screen on while this device trains: phones end what runs behind a dark screen. */

/** The parts of navigator and document that this needs. */
export interface Screen {
  /** Rejects where the browser does not let it now: hidden page, low battery. */
  request(): Promise<{ release(): Promise<void> }>;
  isHidden(): boolean;
  /** Gives back what ends it. */
  onVisible(listener: () => void): () => void;
}

/** The browser's screen; null where it has no wake locks. */
export function browserScreen(): Screen | null {
  if (typeof navigator === "undefined" || !("wakeLock" in navigator) || typeof document === "undefined") return null;
  return {
    request: () => navigator.wakeLock.request("screen"),
    isHidden: () => document.hidden,
    onVisible: (listener) => {
      const changed = () => {
        if (!document.hidden) listener();
      };
      document.addEventListener("visibilitychange", changed);
      return () => document.removeEventListener("visibilitychange", changed);
    },
  };
}

/** A wish for a lit screen. Browsers take the lock away with every hiding; it is asked for again after each. */
export class WakeLock {
  readonly #screen: Screen | null;
  #lock: { release(): Promise<void> } | null = null;
  #isWanted = false;
  #end: () => void = () => {};
  /** Requests one after the other, so that a release cannot overtake the request it is for. */
  #last: Promise<void> = Promise.resolve();

  constructor(screen: Screen | null = browserScreen()) {
    this.#screen = screen;
  }

  /** Whether the screen is kept on now. */
  get isHeld(): boolean {
    return this.#lock !== null;
  }

  /** Asks for it until {@link release}; false where it cannot be had now, which is no failure. */
  async hold(): Promise<boolean> {
    if (this.#screen === null) return false;
    if (!this.#isWanted) {
      this.#isWanted = true;
      this.#end = this.#screen.onVisible(() => {
        this.#queue(async () => {
          await this.#drop(); // the old one went with the hiding
          await this.#take();
        });
      });
    }
    await this.#queue(() => this.#take());
    return this.isHeld;
  }

  async release(): Promise<void> {
    this.#isWanted = false;
    this.#end();
    this.#end = () => {};
    await this.#queue(() => this.#drop());
  }

  #queue(work: () => Promise<void>): Promise<void> {
    this.#last = this.#last.then(work);
    return this.#last;
  }

  async #take(): Promise<void> {
    if (!this.#isWanted || this.#lock !== null || this.#screen === null || this.#screen.isHidden()) return;
    try {
      this.#lock = await this.#screen.request();
    } catch {
      this.#lock = null; // asked again when the page is visible the next time
    }
  }

  async #drop(): Promise<void> {
    const lock = this.#lock;
    this.#lock = null;
    await lock?.release().catch(() => {});
  }
}
