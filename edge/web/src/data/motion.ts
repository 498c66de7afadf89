/**
 * Motion recorded with a label: accelerometer and gyroscope, six channels x y z each, as windows of a fixed rate.
 *
 * Acceleration has gravity in it and is in units of it, rotation is in radians a second, as in the data sets that
 * artifacts for activities are made for.
 */

import { DataError, DeviceRefused } from "../contracts/errors";
import type { LabelledWindow } from "./sources";
import { HAR_WINDOWS, type Sample, type WindowShape, windowsOf } from "./windows";

const GRAVITY = 9.80665;
const RADIANS = Math.PI / 180;
const FIRST_SAMPLE_MS = 2000;

/** A recording longer than this is cut: ten minutes of six channels are 720 kB. */
export const MOST_SECONDS = 600;

/** What a motion event tells; the browser's `DeviceMotionEvent` is one. */
export interface MotionReading {
  readonly accelerationIncludingGravity: Axes | null;
  readonly rotationRate: Angles | null;
  /** Milliseconds on a clock that only rises. */
  readonly timeStamp: number;
}
interface Axes {
  readonly x: number | null;
  readonly y: number | null;
  readonly z: number | null;
}
interface Angles {
  readonly alpha: number | null;
  readonly beta: number | null;
  readonly gamma: number | null;
}

/** Where readings come from; the page's window, or a test. */
export interface MotionSensor {
  /** Asks the owner where the system wants that, which must be in answer to a tap. False: not allowed. */
  allow(): Promise<boolean>;
  listen(listener: (reading: MotionReading) => void): () => void;
}

/** The sensors of a phone that shows this page. @throws DeviceRefused in a browser without them. */
export function browserMotion(): MotionSensor {
  const Event = (globalThis as { DeviceMotionEvent?: { requestPermission?: () => Promise<string> } }).DeviceMotionEvent;
  if (Event === undefined || !globalThis.isSecureContext) {
    throw new DeviceRefused("this page has no motion sensors: open it over HTTPS on a phone");
  }
  return {
    // iOS alone asks. Source: W3C, Device Orientation and Motion, requestPermission.
    allow: async () => Event.requestPermission === undefined || (await Event.requestPermission()) === "granted",
    listen: (listener) => {
      const tell = (event: Event) => listener(event as unknown as MotionReading);
      globalThis.addEventListener("devicemotion", tell);
      return () => globalThis.removeEventListener("devicemotion", tell);
    },
  };
}

/** A recording that runs from {@link start} until {@link stop}. */
export class MotionRecording {
  readonly #samples: Sample[] = [];
  readonly #end: () => void;
  #hasEnded = false;

  private constructor(
    sensor: MotionSensor,
    private readonly label: string,
    private readonly shape: WindowShape,
    onFirst: () => void,
  ) {
    this.#end = sensor.listen((reading) => {
      const values = valuesOf(reading);
      if (values === null || this.seconds >= MOST_SECONDS) return;
      this.#samples.push({ time: reading.timeStamp / 1000, values });
      if (this.#samples.length === 1) onFirst();
    });
  }

  /**
   * Asks for the sensors and waits for the first sample of them.
   *
   * @throws DeviceRefused when they are not allowed, or when none answers, as on a PC; DataError without a label.
   */
  static async start(
    label: string,
    sensor: MotionSensor = browserMotion(),
    shape: WindowShape = HAR_WINDOWS,
    waitMs = FIRST_SAMPLE_MS,
  ): Promise<MotionRecording> {
    const name = label.trim();
    if (name === "") throw new DataError("a recording needs a label; write what is being done");
    if (!(await sensor.allow().catch(() => false))) {
      throw new DeviceRefused(
        "the motion sensors were not allowed; allow them for this page in the browser's settings",
      );
    }
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        recording.#stopListening();
        const waited = `no motion sensor answered within ${waitMs / 1000} s`;
        reject(new DeviceRefused(`${waited}: this device has none, or hides them; use a phone`));
      }, waitMs);
      const recording = new MotionRecording(sensor, name, shape, () => {
        clearTimeout(timer);
        // A sensor may answer before the constructor is through.
        queueMicrotask(() => resolve(recording));
      });
    });
  }

  /** Recorded so far. */
  get seconds(): number {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    return first === undefined || last === undefined ? 0 : last.time - first.time;
  }

  /** Ends the recording and gives its windows; none when it was shorter than one. @throws DataError: a slow sensor. */
  stop(): LabelledWindow[] {
    this.#stopListening();
    const channels = this.#samples[0]?.values.length ?? 0;
    return windowsOf(this.#samples, this.shape).map((values) => ({
      values,
      shape: [this.shape.samples, channels],
      label: this.label,
    }));
  }

  #stopListening(): void {
    if (!this.#hasEnded) this.#end();
    this.#hasEnded = true;
  }
}

/** Six channels; null for a reading that lacks one, as browsers on devices without sensors give. */
function valuesOf({ accelerationIncludingGravity: pull, rotationRate: turn }: MotionReading): number[] | null {
  const told = [pull?.x, pull?.y, pull?.z, turn?.beta, turn?.gamma, turn?.alpha];
  if (!told.every((value): value is number => typeof value === "number" && Number.isFinite(value))) return null;
  return told.map((value, index) => (index < 3 ? value / GRAVITY : value * RADIANS));
}
