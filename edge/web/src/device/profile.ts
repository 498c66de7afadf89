/** The device as a browser can tell of it, with where every figure is from; what the browser hides stays unknown. */

import type { LinkMeasured, Measured, ProfileSource } from "../agent/profileSource";
import { DeviceProfile } from "../contracts/profile";
import type { BlobStore } from "../store/blobStore";
import type { Records } from "../store/records";
import { artifactCost } from "./artifactCost";
import { memoryLines, stepLines } from "./lines";
import { LinkRate } from "./linkRate";
import { Measurements } from "./measurements";
import type { Surroundings, Traits } from "./surroundings";

/**
 * What a page with its agent is taken to hold where the browser tells no size: an assumption, and told as one.
 * Source: measured, Chromium 156, headless: a bare page with data and device parts has a heap of 1.9 MB by either call;
 * a page that shows something has more, and what draws it is in neither.
 */
export const UNTOLD_PAGE_BYTES = 32 * 2 ** 20;

/** Share of the memory that is suggested as a budget: other pages and the system need theirs. */
const SUGGESTED_SHARE = 1 / 8;
const LEAST_SUGGESTED_BYTES = 256 * 2 ** 20;
const MOST_SUGGESTED_BYTES = 1024 * 2 ** 20;

/** A budget to show to the owner, who sets one or not: it is never set for them. */
export function suggestedBudgetBytes(memoryBytes: number | null): number {
  if (memoryBytes === null) return LEAST_SUGGESTED_BYTES;
  return Math.min(MOST_SUGGESTED_BYTES, Math.max(LEAST_SUGGESTED_BYTES, Math.round(memoryBytes * SUGGESTED_SHARE)));
}

export interface BrowserProfileParts {
  /** The agent puts in its own. */
  readonly device?: string;
  /** As the owner set it; 0: none. */
  readonly budgetBytes: number;
  readonly surroundings: Surroundings;
  readonly measurements: Measurements;
  readonly linkRate: LinkRate;
}

/** The profile of a browser. The agent puts in runtimes, idle sizes of the trainer and most threads. */
export class BrowserProfile implements ProfileSource {
  constructor(private readonly parts: BrowserProfileParts) {}

  /** With what was measured on earlier days in `records`, of artifacts that `store` still has. */
  static of(surroundings: Surroundings, records: Records, store: BlobStore, budgetBytes = 0): BrowserProfile {
    const measurements = new Measurements(records, (artifact) => artifactCost(store, artifact));
    return new BrowserProfile({ budgetBytes, surroundings, measurements, linkRate: new LinkRate(records) });
  }

  async profile(): Promise<DeviceProfile> {
    const { device = "", budgetBytes, surroundings, measurements, linkRate } = this.parts;
    const [traits, points, rate] = [await surroundings.traits(), await measurements.all(), await linkRate.rate()];
    const idle = (await surroundings.heldBytes()) ?? {
      bytes: UNTOLD_PAGE_BYTES,
      source: "not told by this browser, assumed",
    };
    const { battery, storage, pressure } = surroundings.readings();
    const sources: Record<string, string> = {
      cpu_count: "navigator.hardwareConcurrency",
      supervisor_idle_bytes: idle.source,
      trainer_idle_bytes: "WebAssembly.Memory of the runtime, measured in its worker",
      ram_bytes:
        traits.memoryBytes === null
          ? "not told by this browser"
          : "navigator.deviceMemory, which browsers round and cap, many at 8 GB",
    };
    if (budgetBytes > 0) sources.budget_bytes = "set by the owner on the device's page";
    if (storage !== null) sources.storage_free_bytes = "navigator.storage.estimate, this page's share";
    if (battery !== null) sources.battery_percent = "navigator.getBattery";
    if (battery !== null) sources.charging = "navigator.getBattery";
    if (pressure !== null) sources.throttling = "PressureObserver";
    if (traits.model !== "") sources.board = "navigator.userAgentData";
    if (traits.architecture !== "") sources.machine = "navigator.userAgentData";
    if (traits.platform !== "") sources.os_name = "navigator.userAgentData or navigator.userAgent";
    if (rate !== null) sources.link_bytes_per_s = `${rate.transfers} transfers`;
    const [memory, steps] = [memoryLines(points), stepLines(points)];
    if (Object.keys(memory).length > 0) sources.memory_lines = `${points.length} trainings on this device`;
    if (Object.keys(steps).length > 0) sources.step_lines = `${points.length} trainings on this device`;
    return DeviceProfile.make({
      device,
      budget_bytes: budgetBytes,
      ram_bytes: traits.memoryBytes ?? 0,
      cpu_count: Math.max(1, traits.processors),
      machine: traits.architecture,
      system: traits.browser,
      os_name: osName(traits),
      board: traits.model,
      storage_free_bytes: storage === null ? 0 : Math.max(0, Math.floor(storage.quota - storage.usage)),
      storage_total_bytes: storage === null ? 0 : Math.floor(storage.quota),
      battery_percent: battery?.percent ?? null,
      charging: battery?.charging ?? null,
      throttling: pressure === null ? null : pressure === "nominal" ? [] : [`pressure-${pressure}`],
      supervisor_idle_bytes: idle.bytes,
      probed_at: surroundings.now() / 1000,
      link_bytes_per_s: rate?.bytesPerS ?? null,
      link_measured_at: rate?.measuredAt ?? 0,
      link_method: rate?.method ?? "",
      memory_lines: memory,
      step_lines: steps,
      sources,
    });
  }

  heldBytes(): number | null {
    return this.parts.surroundings.heapBytes();
  }

  measured(entry: Measured): Promise<void> {
    return this.parts.measurements.add(entry);
  }

  linkMeasured(entry: LinkMeasured): Promise<void> {
    return this.parts.linkRate.add(entry);
  }
}

function osName({ platform, platformVersion }: Traits): string {
  return `${platform} ${platformVersion}`.trim();
}
