/**
 * Whether a device may train now: what its owner set, held against what the browser tells.
 *
 * A charge or a charger that cannot be read leaves a condition on it unmet, as on the Python agent: an owner who set a
 * limit has not said that it may be guessed. A link that cannot be read does not: most browsers tell nothing of it, and
 * {@link unreadable} says so on the page.
 */

import type { Asked, Conditions, Unmet } from "../agent/conditions";
import type { Readings, Surroundings } from "./surroundings";
import { TimeWindow, timeText } from "./timeWindow";

export const STORAGE_FLOOR_BYTES = 32 * 2 ** 20;

/** A device that waits for its battery goes on this far above the limit, or it would stop again at once. */
export const FULLER_BY_PERCENT = 2;

/** When the owner lets this device train; plain, so that it can be kept as a record. */
export interface OwnerChoices {
  /** Train on when the page is not visible; browsers then slow it down, and phones may end it. */
  readonly whenHidden: boolean;
  /** Train and transfer on a mobile or data-saving link. */
  readonly whenMetered: boolean;
  readonly onlyCharging: boolean;
  /** Charge below which it waits unless it is charging; null: no limit. */
  readonly minBatteryPercent: number | null;
  /** `22:00-06:30`; null: any time. */
  readonly window: string | null;
}

export const DEFAULT_CHOICES: OwnerChoices = {
  whenHidden: false,
  whenMetered: false,
  onlyCharging: false,
  minBatteryPercent: null,
  window: null,
};

/** The owner's choices as the agent asks them; {@link choose} replaces them at any time. */
export class DeviceConditions implements Conditions {
  readonly #surroundings: Surroundings;
  readonly #listeners = new Set<() => void>();
  #choices: OwnerChoices;
  #window: TimeWindow | null;
  #memoryBytes: number | null = null;

  /** @throws RangeError for a time of day that is none. */
  constructor(surroundings: Surroundings, choices: OwnerChoices = DEFAULT_CHOICES) {
    this.#surroundings = surroundings;
    this.#choices = choices;
    this.#window = windowOf(choices);
    surroundings.traits().then(
      (traits) => {
        this.#memoryBytes = traits.memoryBytes;
      },
      () => {}, // not told
    );
  }

  get choices(): OwnerChoices {
    return this.#choices;
  }

  /** @throws RangeError for a time of day that is none; the choices are then as before. */
  choose(choices: OwnerChoices): void {
    this.#window = windowOf(choices);
    this.#choices = choices;
    for (const listener of this.#listeners) listener();
  }

  unmet(asked: Asked): Unmet | null {
    const readings = this.#surroundings.readings();
    const choices = this.#choices;
    const margin = asked.before === "battery" ? FULLER_BY_PERCENT : 0;
    if (asked.purpose === "upload") return network(choices, readings);
    if (asked.purpose === "download") return network(choices, readings) ?? battery(choices, readings, margin);
    const found =
      hidden(choices, readings) ??
      time(this.#window, readings) ??
      network(choices, readings) ??
      charging(choices, readings) ??
      battery(choices, readings, margin);
    if (found !== null || asked.isTraining) return found;
    return memory(this.#memoryBytes, asked.neededBytes) ?? storage(readings);
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    const end = this.#surroundings.subscribe(listener);
    return () => {
      this.#listeners.delete(listener);
      end();
    };
  }
}

/** Conditions that this browser has no reading for, a sentence for each. */
export function unreadable(choices: OwnerChoices, readings: Readings): string[] {
  const found: string[] = [];
  if (choices.onlyCharging && readings.battery === null) {
    found.push("Only while charging: this browser does not tell about a charger; leave it out.");
  }
  if (choices.minBatteryPercent !== null && readings.battery === null) {
    found.push("Least battery: this browser does not tell the charge; leave it out.");
  }
  if (!choices.whenMetered && readings.link === null) {
    found.push("Metered links: this browser does not tell which link it uses; training goes on over any.");
  }
  return found;
}

function windowOf(choices: OwnerChoices): TimeWindow | null {
  return choices.window === null ? null : TimeWindow.parse(choices.window);
}

function hidden(choices: OwnerChoices, { isHidden }: Readings): Unmet | null {
  if (choices.whenHidden || !isHidden) return null;
  return { waitingFor: "hidden", reason: "the page is not visible, training goes on when it is" };
}

function time(window: TimeWindow | null, { minuteOfDay }: Readings): Unmet | null {
  if (window === null || window.holds(minuteOfDay)) return null;
  return { waitingFor: "time", reason: `it is ${timeText(minuteOfDay)}, training is allowed ${window}` };
}

function network(choices: OwnerChoices, { link }: Readings): Unmet | null {
  if (choices.whenMetered || link === null) return null;
  if (link.type === "cellular") {
    return { waitingFor: "network", reason: "the link is mobile data, only unmetered links are to be used" };
  }
  if (link.savesData) {
    return { waitingFor: "network", reason: "the browser saves data, only unmetered links are to be used" };
  }
  return null;
}

function charging(choices: OwnerChoices, { battery: found }: Readings): Unmet | null {
  if (!choices.onlyCharging || found?.charging) return null;
  const reason = found === null ? "no charger can be read" : "the device runs on its battery";
  return { waitingFor: "charging", reason: `${reason}, training is allowed while charging only` };
}

function battery(choices: OwnerChoices, { battery: found }: Readings, margin: number): Unmet | null {
  const limit = choices.minBatteryPercent;
  if (limit === null || found?.charging) return null;
  if (found === null) {
    return { waitingFor: "battery", reason: `no battery can be read, at least ${limit.toFixed(0)} % are asked for` };
  }
  const least = Math.min(100, limit + margin);
  if (found.percent >= least) return null;
  const has = `the battery has ${found.percent.toFixed(0)} %`;
  return { waitingFor: "battery", reason: `${has}, training goes on at ${least.toFixed(0)} % or on a charger` };
}

/** Browsers tell no free memory: what is needed is held against what the device has in all. */
function memory(memoryBytes: number | null, neededBytes: number): Unmet | null {
  if (memoryBytes === null || neededBytes <= memoryBytes) return null;
  const [has, needs] = [megabytes(memoryBytes), megabytes(neededBytes)];
  return { waitingFor: "memory", reason: `the device has ${has} MB of memory, the order needs ${needs}` };
}

function storage({ storage: found }: Readings): Unmet | null {
  const free = found === null ? STORAGE_FLOOR_BYTES : found.quota - found.usage;
  if (free >= STORAGE_FLOOR_BYTES) return null;
  const reason = `${megabytes(free)} MB of storage are free for this page, ${megabytes(STORAGE_FLOOR_BYTES)} are needed`;
  return { waitingFor: "storage", reason };
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(0);
}
