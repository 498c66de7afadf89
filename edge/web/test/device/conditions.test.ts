import { describe, expect, it } from "vitest";
import type { Asked } from "../../src/agent/conditions";
import { DEFAULT_CHOICES, DeviceConditions, type OwnerChoices, unreadable } from "../../src/device/conditions";
import type { Readings } from "../../src/device/surroundings";
import { TimeWindow } from "../../src/device/timeWindow";
import { FakeSurroundings } from "./fakeSurroundings";

const ASKED: Asked = { purpose: "training", neededBytes: 0, isTraining: false, before: null };

function asked(choices: Partial<OwnerChoices>, readings: Partial<Readings>, more: Partial<Asked> = {}) {
  const device = new FakeSurroundings();
  device.change(readings);
  return new DeviceConditions(device, { ...DEFAULT_CHOICES, ...choices }).unmet({ ...ASKED, ...more });
}

describe("conditions", () => {
  it("without choices a visible page trains, whatever cannot be read", () => {
    expect(asked({}, {})).toBeNull();
    expect(
      asked({}, { link: { type: "wifi", savesData: false }, battery: { percent: 3, charging: false } }),
    ).toBeNull();
  });

  it("a hidden page waits, unless its owner said otherwise", () => {
    expect(asked({}, { isHidden: true })).toEqual({
      waitingFor: "hidden",
      reason: "the page is not visible, training goes on when it is",
    });
    expect(asked({ whenHidden: true }, { isHidden: true })).toBeNull();
  });

  it("a mobile or data-saving link is metered", () => {
    const mobile = { link: { type: "cellular", savesData: false } };
    expect(asked({}, mobile)).toMatchObject({ waitingFor: "network", reason: expect.stringContaining("mobile data") });
    expect(asked({}, { link: { type: "wifi", savesData: true } })?.reason).toContain("the browser saves data");
    expect(asked({ whenMetered: true }, mobile)).toBeNull();
  });

  it("a low battery waits with its charge, goes on two percent above the limit, or on a charger", () => {
    const low = { battery: { percent: 19, charging: false } };
    expect(asked({ minBatteryPercent: 20 }, low)).toEqual({
      waitingFor: "battery",
      reason: "the battery has 19 %, training goes on at 20 % or on a charger",
    });
    const fuller = { battery: { percent: 21, charging: false } };
    expect(asked({ minBatteryPercent: 20 }, fuller)).toBeNull();
    expect(asked({ minBatteryPercent: 20 }, fuller, { before: "battery" })?.reason).toContain("goes on at 22 %");
    expect(asked({ minBatteryPercent: 20 }, { battery: { percent: 19, charging: true } })).toBeNull();
    const full = { battery: { percent: 100, charging: false } };
    expect(asked({ minBatteryPercent: 99 }, full, { before: "battery" })).toBeNull();
  });

  it("a metered link holds back all that is large, a low battery downloads as well, the rest trainings alone", () => {
    const purposes = ["download", "training", "upload"] as const;
    const heldBack = (choices: Partial<OwnerChoices>, readings: Partial<Readings>) =>
      purposes.filter((purpose) => asked(choices, readings, { purpose }) !== null);
    expect(heldBack({}, { link: { type: "cellular", savesData: false } })).toEqual(purposes);
    const low = { battery: { percent: 9, charging: false } };
    expect(heldBack({ minBatteryPercent: 20 }, low)).toEqual(["download", "training"]);
    expect(heldBack({ onlyCharging: true }, low)).toEqual(["training"]);
    expect(heldBack({}, { isHidden: true })).toEqual(["training"]);
    expect(heldBack({}, { storage: { usage: 10, quota: 11 } })).toEqual(["training"]);
  });

  it("only charging", () => {
    expect(asked({ onlyCharging: true }, { battery: { percent: 90, charging: false } })).toEqual({
      waitingFor: "charging",
      reason: "the device runs on its battery, training is allowed while charging only",
    });
    expect(asked({ onlyCharging: true }, { battery: { percent: 90, charging: true } })).toBeNull();
  });

  it("a battery that cannot be read leaves a limit on it unmet, and that is said beforehand", () => {
    const choices = { ...DEFAULT_CHOICES, onlyCharging: true, minBatteryPercent: 30 };
    expect(asked({ onlyCharging: true }, {})?.reason).toContain("no charger can be read");
    expect(asked({ minBatteryPercent: 30 }, {})?.reason).toBe("no battery can be read, at least 30 % are asked for");
    const { current } = new FakeSurroundings();
    expect(unreadable(choices, current).map((line) => line.split(":")[0])).toEqual([
      "Only while charging",
      "Least battery",
      "Metered links",
    ]);
    expect(unreadable({ ...DEFAULT_CHOICES, whenMetered: true }, current)).toEqual([]);
  });

  it("a time of day, over midnight", () => {
    const night = { window: "22:00-06:30" };
    expect(asked(night, { minuteOfDay: 12 * 60 + 5 })).toEqual({
      waitingFor: "time",
      reason: "it is 12:05, training is allowed 22:00-06:30",
    });
    for (const minute of [22 * 60, 0, 6 * 60 + 29]) expect(asked(night, { minuteOfDay: minute })).toBeNull();
    for (const minute of [21 * 60 + 59, 6 * 60 + 30]) expect(asked(night, { minuteOfDay: minute })).not.toBeNull();
    expect(() => TimeWindow.parse("9-17")).toThrow("'9-17' is no time of day");
    expect(() => TimeWindow.parse("09:00-09:00")).toThrow("begins when it ends");
  });

  it("storage and memory are asked about before a training, not in one", async () => {
    const full = { storage: { usage: 90_000_000, quota: 100_000_000 } };
    expect(asked({}, full)).toEqual({
      waitingFor: "storage",
      reason: "10 MB of storage are free for this page, 34 are needed",
    });
    expect(asked({}, full, { isTraining: true })).toBeNull();
    const device = new FakeSurroundings();
    const conditions = new DeviceConditions(device);
    await device.traits(); // read by now
    expect(conditions.unmet({ ...ASKED, neededBytes: 9e9 })).toEqual({
      waitingFor: "memory",
      reason: "the device has 8590 MB of memory, the order needs 9000",
    });
    expect(conditions.unmet({ ...ASKED, neededBytes: 9e9, isTraining: true })).toBeNull();
  });

  it("tells when something changes: a reading, or what the owner wants", () => {
    const device = new FakeSurroundings();
    const conditions = new DeviceConditions(device);
    let told = 0;
    const end = conditions.subscribe(() => {
      told += 1;
    });
    device.change({ isHidden: true });
    expect(conditions.unmet(ASKED)?.waitingFor).toBe("hidden");
    conditions.choose({ ...DEFAULT_CHOICES, whenHidden: true });
    expect(told).toBe(2);
    expect(conditions.unmet(ASKED)).toBeNull();
    expect(() => conditions.choose({ ...DEFAULT_CHOICES, window: "now" })).toThrow("no time of day");
    expect(conditions.choices.whenHidden).toBe(true);
    end();
    device.change({ isHidden: false });
    conditions.choose(DEFAULT_CHOICES);
    expect(told).toBe(2);
    expect(device.listeners.size).toBe(0);
  });
});
