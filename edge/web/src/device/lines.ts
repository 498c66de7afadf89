/** Straight lines through what a device measured, as its profile carries them: memory by prediction, time by work. */

import { MemoryLine, StepLine } from "../contracts/profile";
import type { Measurement } from "./measurements";

/** Runtime name -> its line of memory. */
export function memoryLines(points: readonly Measurement[]): Record<string, MemoryLine> {
  const measured = points.filter((point) => point.grownBytes > 0 && point.predictedBytes > 0);
  return Object.fromEntries([...grouped(measured, (point) => point.runtime)].map(([name, own]) => [name, memory(own)]));
}

/** Runtime name -> a line of time for every number of threads measured. */
export function stepLines(points: readonly Measurement[]): Record<string, readonly StepLine[]> {
  const measured = points.filter((point) => point.gigamacs > 0 && point.stepMs > 0);
  return Object.fromEntries(
    [...grouped(measured, (point) => point.runtime)].map(([name, own]) => [
      name,
      [...grouped(own, (point) => point.threads)]
        .sort(([a], [b]) => a - b)
        .map(([threads, some]) => step(threads, some)),
    ]),
  );
}

/**
 * Of one runtime. What loading anything takes is the growth of the artifact predicted smallest; above it growth is the
 * largest measured multiple of the prediction. Measurements of one size only cannot tell a multiple from a constant:
 * what they take beyond the prediction counts as constant, or a tiny artifact would promise huge ones.
 */
function memory(points: readonly Measurement[]): MemoryLine {
  const least = Math.min(...points.map((point) => point.predictedBytes));
  const larger = points.filter((point) => point.predictedBytes > least);
  const most = Math.max(...points.filter((point) => point.predictedBytes === least).map((point) => point.grownBytes));
  const line = {
    ...(larger.length > 0
      ? { scale: ratio(larger), offset_bytes: 0, floor_bytes: Math.round(most) }
      : { scale: Math.min(1, most / least), offset_bytes: Math.max(0, Math.round(most - least)), floor_bytes: 0 }),
    points: new Set(points.map((point) => point.predictedBytes)).size,
    measured_at: newest(points),
  };
  const missing = points.map(
    (point) =>
      point.grownBytes - Math.max(line.floor_bytes, Math.round(line.scale * point.predictedBytes + line.offset_bytes)),
  );
  return MemoryLine.make({ ...line, missing_bytes: Math.max(0, Math.ceil(Math.max(...missing))) });
}

function ratio(points: readonly Measurement[]): number {
  return Math.max(...points.map((point) => point.grownBytes / point.predictedBytes));
}

/**
 * Of one runtime with one number of threads: step_ms = constant + gigamacs x gigamac, neither negative, with the
 * smallest squares of relative errors; repeats of an artifact become their median. One size of work fixes no constant.
 */
function step(threads: number, points: readonly Measurement[]): StepLine {
  const settings = [...grouped(points, (point) => `${point.artifact} ${point.gigamacs}`).values()].map((own) => ({
    work: (own[0] as Measurement).gigamacs,
    ms: median(own.map((point) => point.stepMs)),
  }));
  const { constant, slope } = relativeLine(settings);
  const errors = settings.map(({ work, ms }) => Math.abs((constant + slope * work) / ms - 1));
  return StepLine.make({
    threads,
    constant_ms: constant,
    gigamac_ms: Math.min(1e9, slope),
    megabyte_ms: 0,
    median_error: median(errors),
    points: settings.length,
    measured_at: newest(points),
  });
}

function relativeLine(points: readonly { work: number; ms: number }[]): { constant: number; slope: number } {
  // Rows (1, work) / ms aim at 1: a fast point counts as much as a slow one.
  let [aa, ab, bb, a, b] = [0, 0, 0, 0, 0];
  for (const { work, ms } of points) {
    aa += 1 / ms ** 2;
    ab += work / ms ** 2;
    bb += work ** 2 / ms ** 2;
    a += 1 / ms;
    b += work / ms;
  }
  const determinant = aa * bb - ab ** 2;
  const varies = new Set(points.map(({ work }) => work)).size > 1 && determinant > 1e-12 * aa * bb;
  const constant = varies ? (a * bb - b * ab) / determinant : 0;
  const slope = varies ? (b * aa - a * ab) / determinant : b / bb;
  if (constant < 0) return { constant: 0, slope: b / bb };
  if (slope < 0) return { constant: a / aa, slope: 0 };
  return { constant, slope };
}

function grouped<K>(points: readonly Measurement[], key: (point: Measurement) => K): Map<K, Measurement[]> {
  const found = new Map<K, Measurement[]>();
  for (const point of points) found.set(key(point), [...(found.get(key(point)) ?? []), point]);
  return found;
}

/** The middle one; of an even number the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  if (sorted.length === 0) return 0;
  return ((sorted[Math.ceil(middle) - 1] as number) + (sorted[Math.floor(middle)] as number)) / 2;
}

function newest(points: readonly Measurement[]): number {
  return Math.max(...points.map((point) => point.at));
}
