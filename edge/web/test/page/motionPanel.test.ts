import { expect, test } from "vitest";
import { windowsOf } from "../../src/page/motionPanel";

test("windowsOf cuts windows of 128 samples, half overlapping, and drops the rest", () => {
  const windows = windowsOf(Array.from({ length: 300 }, (_, i) => [i]));
  expect(windows.map((window) => [window[0]?.[0], window.length])).toEqual([
    [0, 128],
    [64, 128],
    [128, 128],
  ]);
  expect(windowsOf([[1]])).toEqual([]);
});
