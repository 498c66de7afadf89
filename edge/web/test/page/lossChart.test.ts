import { expect, test } from "vitest";
import { HEIGHT, linePath, thinned, WIDTH } from "../../src/page/lossChart";

test("thinned gives means of equal stretches and leaves out what is not finite", () => {
  expect(thinned([1, 3, Number.NaN, 5, 7], 2)).toEqual([2, 6]);
  expect(thinned([1, 2], 5)).toEqual([1, 2]);
});

test("linePath starts at the top left and ends at the share that is done", () => {
  expect(linePath([2, 1], 0.5)).toBe(`M4.0 4.0L${((WIDTH - 8) / 2 + 4).toFixed(1)} ${HEIGHT - 4}.0`);
});

test("linePath of one loss is a point, of none nothing", () => {
  expect(linePath([2], 0.25).startsWith("M82.0 ")).toBe(true);
  expect(linePath([], 0)).toBe("");
});

test("linePath of equal losses stays finite", () => {
  expect(linePath([1, 1, 1], 1)).not.toContain("NaN");
});
