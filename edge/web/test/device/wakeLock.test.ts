import { describe, expect, it } from "vitest";
import { type Screen, WakeLock } from "../../src/device/wakeLock";

class FakeScreen implements Screen {
  hidden = false;
  refuses = false;
  readonly locks = new Set<object>();
  readonly listeners = new Set<() => void>();

  get held(): number {
    return this.locks.size;
  }
  async request() {
    if (this.refuses) throw new Error("NotAllowedError");
    const lock = {
      release: async () => {
        this.locks.delete(lock);
      },
    };
    this.locks.add(lock);
    return lock;
  }
  isHidden = () => this.hidden;
  onVisible(listener: () => void) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
  /** As a browser does: the lock goes with the hiding. */
  async hideAndShow() {
    this.locks.clear();
    for (const listener of this.listeners) listener();
    await new Promise((resolve) => setTimeout(resolve));
  }
}

describe("the wake lock", () => {
  it("is held until it is released", async () => {
    const screen = new FakeScreen();
    const lock = new WakeLock(screen);
    expect(await lock.hold()).toBe(true);
    expect(await lock.hold()).toBe(true);
    expect(screen.held).toBe(1);
    await lock.release();
    expect([screen.held, lock.isHeld, screen.listeners.size]).toEqual([0, false, 0]);
  });

  it("is taken again when the page is visible again", async () => {
    const screen = new FakeScreen();
    const lock = new WakeLock(screen);
    await lock.hold();
    await screen.hideAndShow();
    expect([screen.held, lock.isHeld]).toEqual([1, true]);
  });

  it("that cannot be had is asked for when the page is visible the next time", async () => {
    const screen = new FakeScreen();
    const lock = new WakeLock(screen);
    screen.refuses = true;
    expect(await lock.hold()).toBe(false);
    screen.refuses = false;
    await screen.hideAndShow();
    expect(lock.isHeld).toBe(true);
    expect(await new WakeLock(null).hold()).toBe(false);
  });

  it("a release right after a hold leaves nothing held", async () => {
    const screen = new FakeScreen();
    const lock = new WakeLock(screen);
    const held = lock.hold();
    await lock.release();
    await held;
    expect([screen.held, lock.isHeld]).toEqual([0, false]);
  });
});
