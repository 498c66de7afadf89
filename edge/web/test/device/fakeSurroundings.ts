import type { Readings, Surroundings, Traits } from "../../src/device/surroundings";

/** A device as a test says it is. */
export class FakeSurroundings implements Surroundings {
  current: Readings = { isHidden: false, minuteOfDay: 720, link: null, battery: null, pressure: null, storage: null };
  held: { bytes: number; source: string } | null = { bytes: 20_000_000, source: "performance.memory, the page's heap" };
  told: Traits = {
    memoryBytes: 8 * 2 ** 30,
    processors: 8,
    platform: "Android",
    platformVersion: "16",
    architecture: "arm64",
    model: "Pixel 9",
    browser: "Chromium 156",
  };
  readonly listeners = new Set<() => void>();

  readings = () => this.current;
  traits = async () => this.told;
  heldBytes = async () => this.held;
  heapBytes = () => 25_000_000;
  now = () => 1_700_000_000_000;
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  change(readings: Partial<Readings>): void {
    this.current = { ...this.current, ...readings };
    for (const listener of this.listeners) listener();
  }
}
