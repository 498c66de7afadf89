import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Measured } from "../../src/agent/profileSource";
import type { Cost } from "../../src/contracts/manifest";
import { machineOf, platformOf } from "../../src/device/browser";
import { LinkRate } from "../../src/device/linkRate";
import { KEPT, Measurements } from "../../src/device/measurements";
import { BrowserProfile, suggestedBudgetBytes, UNTOLD_PAGE_BYTES } from "../../src/device/profile";
import { MemoryRecords } from "../../src/store/memoryStore";
import { FakeSurroundings } from "./fakeSurroundings";

const COSTS: Record<string, Partial<Cost>> = {
  small: { macs: 1_000_000, predicted_peak_bytes: 2_000_000, graph_bytes: 5000 },
  large: { macs: 40_000_000, predicted_peak_bytes: 60_000_000, graph_bytes: 90_000 },
};

const costOf = async (artifact: string) => (COSTS[artifact] as Cost | undefined) ?? null;

function trained(artifact: string, fields: Partial<Measured> = {}): Measured {
  return {
    runtime: "onnxruntime_web",
    artifact,
    batch: 32,
    threads: 1,
    stepMsP50: 20,
    peakBytes: 40_000_000,
    idleBytes: 30_000_000,
    predictedPeakBytes: 0,
    predictedStepMs: 0,
    ...fields,
  };
}

function parts() {
  const records = new MemoryRecords();
  const surroundings = new FakeSurroundings();
  const measurements = new Measurements(records, costOf, () => 1_700_000_000);
  return { records, surroundings, measurements, linkRate: new LinkRate(records, () => 1_700_000_000) };
}

describe("the profile of a browser", () => {
  it("is the one that the planner's tests read", async () => {
    const found = parts();
    found.surroundings.change({
      battery: { percent: 71, charging: true },
      storage: { usage: 1_000_000, quota: 900_000_000.5 },
      pressure: "serious",
    });
    const source = new BrowserProfile({ device: "phone-1", budgetBytes: 400_000_000, ...found });
    await source.measured(trained("small"));
    await source.measured(trained("large", { stepMsP50: 150, peakBytes: 120_000_000 }));
    await source.measured(trained("large", { stepMsP50: 90, peakBytes: 130_000_000, threads: 2 }));
    await source.linkMeasured({ bytes: 1_000_000, seconds: 2, method: "https" });
    const recorded = JSON.parse(readFileSync(new URL("profile.json", import.meta.url), "utf-8"));
    const profile = await source.profile();
    expect(profile).toEqual(recorded);
    expect(profile.memory_lines.onnxruntime_web).toMatchObject({ floor_bytes: 10_000_000, points: 2 });
    expect(profile.memory_lines.onnxruntime_web?.scale).toBeCloseTo(100 / 60, 6);
  });

  it("of a browser that tells nothing says so", async () => {
    const found = parts();
    found.surroundings.held = null;
    found.surroundings.told = {
      ...found.surroundings.told,
      memoryBytes: null,
      model: "",
      architecture: "",
      processors: 0,
    };
    const profile = await new BrowserProfile({ device: "phone-1", budgetBytes: 0, ...found }).profile();
    expect(profile).toMatchObject({
      budget_bytes: 0,
      ram_bytes: 0,
      cpu_count: 1,
      battery_percent: null,
      charging: null,
      throttling: null,
      link_bytes_per_s: null,
      supervisor_idle_bytes: UNTOLD_PAGE_BYTES,
      memory_lines: {},
      step_lines: {},
    });
    expect(profile.sources.ram_bytes).toBe("not told by this browser");
    expect(profile.sources.supervisor_idle_bytes).toContain("not told by this browser");
    expect(Object.keys(profile.sources)).not.toContain("budget_bytes");
  });

  it("suggests a budget within bounds", () => {
    const gib = 2 ** 30;
    expect([null, gib, 4 * gib, 32 * gib].map(suggestedBudgetBytes)).toEqual([gib / 4, gib / 4, gib / 2, gib]);
  });
});

describe("measurements", () => {
  it("are kept, the newest of them, without those of an artifact that is gone", async () => {
    const { measurements, records } = parts();
    await measurements.add(trained("gone"));
    await measurements.add(trained("small", { stepMsP50: 0 }));
    expect(await measurements.all()).toEqual([]);
    for (let i = 1; i <= KEPT + 3; i += 1) await measurements.add(trained("small", { stepMsP50: i }));
    const kept = await new Measurements(records, costOf).all();
    expect(kept.length).toBe(KEPT);
    expect([kept[0]?.stepMs, kept.at(-1)?.stepMs]).toEqual([4, KEPT + 3]);
    expect(kept[0]).toMatchObject({
      gigamacs: 0.032,
      grownBytes: 10_000_000,
      predictedBytes: 2_000_000,
      at: 1_700_000_000,
    });
    await measurements.clear();
    expect(await measurements.all()).toEqual([]);
  });

  it("of short transfers say nothing of the link; of others the median counts", async () => {
    const { linkRate } = parts();
    await linkRate.add({ bytes: 255_000, seconds: 1, method: "mqtt" });
    await linkRate.add({ bytes: 1_000_000, seconds: 0, method: "mqtt" });
    expect(await linkRate.rate()).toBeNull();
    for (const seconds of [1, 2, 4]) await linkRate.add({ bytes: 1_000_000, seconds, method: "https" });
    expect(await linkRate.rate()).toEqual({
      bytesPerS: 500_000,
      measuredAt: 1_700_000_000,
      method: "https",
      transfers: 3,
    });
  });
});

describe("a platform", () => {
  it("has the machine's name that its system has", () => {
    const told = [
      ["arm", "64"],
      ["x86", "64"],
      ["riscv", "64"],
      ["", ""],
    ] as const;
    expect(told.map(([architecture, bitness]) => machineOf(architecture, bitness))).toEqual([
      "aarch64",
      "x86_64",
      "riscv",
      "",
    ]);
  });

  it.each([
    ["Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15", "iOS"],
    ["Mozilla/5.0 (Android 15; Mobile; rv:140.0) Gecko/140.0 Firefox/140.0", "Android"],
    ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0)", "Linux"],
    ["something else", ""],
  ])("%s", (userAgent, platform) => {
    expect(platformOf(userAgent)).toBe(platform);
  });
});
