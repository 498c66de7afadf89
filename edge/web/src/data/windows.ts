/** Samples that come when they come, as windows of a fixed rate: straight lines between neighbours. */

import { DataError } from "../contracts/errors";

/** One reading of a sensor, `time` in seconds on any clock that only rises. */
export interface Sample {
  readonly time: number;
  readonly values: readonly number[];
}

export interface WindowShape {
  /** Samples of one window. */
  readonly samples: number;
  /** Samples from the start of a window to that of the next. */
  readonly step: number;
  /** Samples a second. */
  readonly hertz: number;
}

/** As in the data set of Anguita et al., "A Public Domain Dataset for Human Activity Recognition", ESANN 2013. */
export const HAR_WINDOWS: WindowShape = { samples: 128, step: 64, hertz: 50 };

/** A pause longer than this is not bridged: what lies between would be made up. */
const LONGEST_GAP_S = 0.25;

/**
 * Windows [samples, channels] of `samples`, none across a pause.
 *
 * @throws DataError for a sensor that is slower than half of the rate.
 */
export function windowsOf(samples: readonly Sample[], { samples: length, step, hertz }: WindowShape): Float32Array[] {
  return withoutGaps(samples).flatMap((run) => {
    const [first, last] = [run[0] as Sample, run.at(-1) as Sample];
    const rate = run.length < 2 ? 0 : (run.length - 1) / (last.time - first.time);
    const count = Math.floor((last.time - first.time) * hertz + 1e-6) + 1;
    if (count < length) return [];
    if (rate < hertz / 2) {
      throw new DataError(
        `the sensor gives ${rate.toFixed(0)} samples a second, at least ${hertz / 2} are needed; use another device`,
      );
    }
    const even = resampled(run, count, hertz);
    const channels = first.values.length;
    const windows: Float32Array[] = [];
    for (let start = 0; start + length <= count; start += step) {
      windows.push(even.slice(start * channels, (start + length) * channels));
    }
    return windows;
  });
}

function withoutGaps(samples: readonly Sample[]): Sample[][] {
  const runs: Sample[][] = [];
  for (const sample of samples) {
    const run = runs.at(-1);
    const before = run?.at(-1);
    if (run === undefined || before === undefined || sample.time - before.time > LONGEST_GAP_S) runs.push([sample]);
    else if (sample.time > before.time) run.push(sample); // the same time twice is the same sample
  }
  return runs;
}

/** Row-major [count, channels], the first at the time of the first sample. */
function resampled(run: readonly Sample[], count: number, hertz: number): Float32Array {
  const first = run[0] as Sample;
  const channels = first.values.length;
  const even = new Float32Array(count * channels);
  let after = 0;
  for (let i = 0; i < count; i += 1) {
    const time = first.time + i / hertz;
    while (after < run.length - 1 && (run[after] as Sample).time < time) after += 1;
    const [left, right] = [run[Math.max(0, after - 1)] as Sample, run[after] as Sample];
    const span = right.time - left.time;
    const share = span > 0 ? Math.min(1, (time - left.time) / span) : 0;
    for (let channel = 0; channel < channels; channel += 1) {
      const [from, to] = [left.values[channel] as number, right.values[channel] as number];
      even[i * channels + channel] = from + (to - from) * share;
    }
  }
  return even;
}
