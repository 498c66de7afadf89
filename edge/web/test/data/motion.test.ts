import { describe, expect, it } from "vitest";
import { DeviceRefused } from "../../src/contracts/errors";
import { MOST_SECONDS, type MotionReading, MotionRecording, type MotionSensor } from "../../src/data/motion";
import { type Sample, windowsOf } from "../../src/data/windows";

const SHAPE = { samples: 4, step: 2, hertz: 10 };

const ramp = (times: number[]): Sample[] => times.map((time) => ({ time, values: [time, -10 * time] }));

describe("windows of a fixed rate", () => {
  it("lie on straight lines between samples that came at any time, and overlap", () => {
    const windows = windowsOf(ramp([5, 5.07, 5.22, 5.22, 5.3, 5.41, 5.55, 5.61]), SHAPE);
    expect(windows.map((window) => window.length)).toEqual([8, 8]);
    const expected = [5, 5.1, 5.2, 5.3, 5.4, 5.5];
    [0, 2].forEach((start, number) => {
      for (let i = 0; i < 4; i += 1) {
        const time = expected[start + i] as number;
        expect(windows[number]?.[2 * i]).toBeCloseTo(time, 5);
        expect(windows[number]?.[2 * i + 1]).toBeCloseTo(-10 * time, 4);
      }
    });
  });

  it("never span a pause, and are none where a run is too short", () => {
    expect(windowsOf(ramp([0, 0.1, 0.2, 1, 1.1, 1.2]), SHAPE)).toEqual([]);
    expect(windowsOf(ramp([0, 0.1, 0.2, 1, 1.1, 1.2, 1.3]), SHAPE)).toHaveLength(1);
    expect(windowsOf([], SHAPE)).toEqual([]);
  });

  it("are not made of a sensor that is far too slow", () => {
    const slow = ramp(Array.from({ length: 20 }, (_, i) => i * 0.24));
    expect(() => windowsOf(slow, SHAPE)).toThrow("gives 4 samples a second, at least 5 are needed");
  });
});

class FakeSensor implements MotionSensor {
  readonly listeners = new Set<(reading: MotionReading) => void>();
  isAllowed = true;
  allow = async () => this.isAllowed;
  listen(listener: (reading: MotionReading) => void) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
  tell(reading: Partial<MotionReading>) {
    const still = { x: 0, y: 0, z: 9.80665 };
    const usual = {
      accelerationIncludingGravity: still,
      rotationRate: { alpha: 180, beta: 90, gamma: 0 },
      timeStamp: 0,
    };
    for (const listener of this.listeners) listener({ ...usual, ...reading });
  }
}

describe("a recording", () => {
  async function started(sensor: FakeSensor) {
    const recording = MotionRecording.start(" walking ", sensor, SHAPE);
    await Promise.resolve();
    await Promise.resolve();
    sensor.tell({ timeStamp: 0 });
    return recording;
  }

  it("gives labelled windows in units of gravity and radians", async () => {
    const sensor = new FakeSensor();
    const recording = await started(sensor);
    for (let i = 1; i <= 3; i += 1) sensor.tell({ timeStamp: i * 100 });
    sensor.tell({ timeStamp: 350, rotationRate: null }); // a reading without rotation is none
    expect(recording.seconds).toBeCloseTo(0.3, 9);
    const windows = recording.stop();
    expect(sensor.listeners.size).toBe(0);
    expect(windows.map(({ shape, label }) => [shape, label])).toEqual([[[4, 6], "walking"]]);
    const row = [...(windows[0]?.values.slice(0, 6) ?? [])];
    [0, 0, 1, Math.PI / 2, 0, Math.PI].forEach((value, i) => {
      expect(row[i]).toBeCloseTo(value, 6);
    });
  });

  it("ends by itself after ten minutes", async () => {
    const sensor = new FakeSensor();
    const recording = await started(sensor);
    for (let i = 1; i <= MOST_SECONDS + 5; i += 1) sensor.tell({ timeStamp: i * 1000 });
    expect(recording.seconds).toBe(MOST_SECONDS);
    recording.stop();
  });

  it("is refused without sensors, permission or label", async () => {
    const silent = new FakeSensor();
    const nothing = MotionRecording.start("sit", silent, SHAPE, 20);
    await expect(nothing).rejects.toThrow("no motion sensor answered within 0.02 s");
    expect(silent.listeners.size).toBe(0);
    silent.isAllowed = false;
    await expect(MotionRecording.start("sit", silent, SHAPE)).rejects.toThrow(DeviceRefused);
    await expect(MotionRecording.start("  ", silent, SHAPE)).rejects.toThrow("a recording needs a label");
    await expect((async () => MotionRecording.start("sit"))()).rejects.toThrow("this page has no motion sensors");
  });
});
