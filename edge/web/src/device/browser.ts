/** The surroundings of a page, read from the browser. */

import { observeBattery } from "./battery";
import { observePressure } from "./pressure";
import type { Battery, Link, Pressure, Readings, Surroundings, Told, Traits } from "./surroundings";

const MINUTE_MS = 60_000;

// What TypeScript's DOM does not have: parts that only some browsers do.
interface Connection extends EventTarget {
  readonly type?: string;
  readonly saveData?: boolean;
}
interface AgentData {
  readonly brands: readonly { readonly brand: string; readonly version: string }[];
  readonly platform: string;
  getHighEntropyValues(hints: readonly string[]): Promise<Record<string, unknown>>;
}
interface SomeNavigator {
  readonly connection?: Connection;
  readonly deviceMemory?: number;
  readonly userAgentData?: AgentData;
}
interface MemoryTold {
  readonly breakdown: readonly {
    readonly bytes: number;
    readonly attribution: readonly { readonly scope: string }[];
  }[];
}
interface SomePerformance {
  measureUserAgentSpecificMemory?(): Promise<MemoryTold>;
  readonly memory?: { readonly usedJSHeapSize: number };
}

/** A page's own. Readings are kept up to date from the beginning until {@link close}. */
export class BrowserSurroundings implements Surroundings {
  readonly #listeners = new Set<() => void>();
  readonly #ends: (() => void)[] = [];
  readonly #connection = (navigator as SomeNavigator).connection ?? null;
  #battery: Told<Battery> = null;
  #pressure: Told<Pressure> = null;
  #storage: Readings["storage"] = null;
  /** The first reading counts: a page in mid-training would count its training. */
  #held: Told<{ bytes: number; source: string }> = null;

  constructor() {
    this.#ends.push(
      observeBattery((battery) => {
        this.#battery = battery;
        this.#tell();
      }),
      observePressure((pressure) => {
        this.#pressure = pressure;
        this.#tell();
      }),
    );
    this.#listen(document, "visibilitychange");
    if (this.#connection !== null) this.#listen(this.#connection, "change");
    const timer = setInterval(() => void this.#readStorage(), MINUTE_MS);
    this.#ends.push(() => clearInterval(timer));
    void this.#readStorage();
    void this.#measureHeld();
  }

  readings(): Readings {
    const now = new Date();
    return {
      isHidden: document.hidden,
      minuteOfDay: now.getHours() * 60 + now.getMinutes(),
      link: this.#link(),
      battery: this.#battery,
      pressure: this.#pressure,
      storage: this.#storage,
    };
  }

  async traits(): Promise<Traits> {
    const { deviceMemory, userAgentData } = navigator as SomeNavigator;
    const memoryBytes = deviceMemory === undefined ? null : deviceMemory * 2 ** 30;
    const processors = navigator.hardwareConcurrency;
    if (userAgentData === undefined) {
      const platform = platformOf(navigator.userAgent);
      return { memoryBytes, processors, platform, platformVersion: "", architecture: "", model: "", browser: "" };
    }
    const hints = ["architecture", "bitness", "model", "platformVersion"];
    // A browser may refuse some or all of them.
    const told = await userAgentData.getHighEntropyValues(hints).catch((): Record<string, unknown> => ({}));
    const text = (name: string) => (typeof told[name] === "string" ? (told[name] as string) : "");
    // Brands hold one that is no browser, so that nobody relies on their order.
    const brand = userAgentData.brands.find(({ brand }) => !/Not.?A.?Brand/i.test(brand));
    return {
      memoryBytes,
      processors,
      platform: userAgentData.platform,
      platformVersion: text("platformVersion"),
      architecture: machineOf(text("architecture"), text("bitness")),
      model: text("model"),
      browser: brand === undefined ? "" : `${brand.brand} ${brand.version}`,
    };
  }

  async heldBytes(): Promise<{ bytes: number; source: string } | null> {
    const heap = this.heapBytes();
    if (heap !== null) this.#held ??= { bytes: heap, source: "performance.memory, the page's heap" };
    return this.#held;
  }

  heapBytes(): Told<number> {
    return (performance as SomePerformance).memory?.usedJSHeapSize ?? null;
  }

  now(): number {
    return Date.now();
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Nothing is read or told from now on. */
  close(): void {
    for (const end of this.#ends) end();
    this.#listeners.clear();
  }

  #link(): Told<Link> {
    const found = this.#connection;
    // A browser that tells neither, as most do on a PC, says nothing of what a link costs.
    if (found === null || (found.type === undefined && !found.saveData)) return null;
    return { type: found.type ?? "", savesData: found.saveData ?? false };
  }

  async #readStorage(): Promise<void> {
    const found = await navigator.storage?.estimate?.().catch(() => null);
    if (found?.quota !== undefined) this.#storage = { usage: found.usage ?? 0, quota: found.quota };
    this.#tell(); // the minute has changed as well
  }

  /** The browser waits for a garbage collection, tens of seconds; nobody waits for the browser. */
  async #measureHeld(): Promise<void> {
    const some = performance as SomePerformance;
    if (!globalThis.crossOriginIsolated || some.measureUserAgentSpecificMemory === undefined) return;
    const told = await some.measureUserAgentSpecificMemory().catch(() => null);
    const bytes = told === null ? 0 : pageBytes(told);
    if (bytes > 0) this.#held = { bytes, source: "performance.measureUserAgentSpecificMemory, without workers" };
  }

  #listen(target: EventTarget, event: string): void {
    const tell = () => this.#tell();
    target.addEventListener(event, tell);
    this.#ends.push(() => target.removeEventListener(event, tell));
  }

  #tell(): void {
    for (const listener of this.#listeners) listener();
  }
}

/** The page's own: its trainer is a worker, and measures itself. */
function pageBytes(told: MemoryTold): number {
  const own = told.breakdown.filter(({ attribution }) => !attribution.some(({ scope }) => scope.includes("Worker")));
  return own.reduce((sum, { bytes }) => sum + bytes, 0);
}

/** The names that systems have for it: `aarch64`, `x86_64`; others as the browser says. */
export function machineOf(architecture: string, bitness: string): string {
  const names: Record<string, string> = { "arm 64": "aarch64", "x86 64": "x86_64", "x86 32": "i686" };
  return names[`${architecture} ${bitness}`] ?? architecture;
}

/** From a user agent string, which old and new browsers alike keep vague. */
export function platformOf(userAgent: string): string {
  const found = [
    ["Android", /Android/],
    ["iOS", /iPhone|iPad|iPod/],
    ["Windows", /Windows/],
    ["macOS", /Mac OS X/],
    ["Linux", /Linux/],
  ] as const;
  return found.find(([, pattern]) => pattern.test(userAgent))?.[0] ?? "";
}
