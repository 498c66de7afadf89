/** This device as the page knows it: facts for the views, conditions and profile for the agent. */

import type { Conditions } from "../agent/conditions";
import type { ProfileSource } from "../agent/profileSource";
import { BrowserSurroundings } from "../device/browser";
import { DeviceConditions, type OwnerChoices, unreadable } from "../device/conditions";
import { BrowserProfile, suggestedBudgetBytes } from "../device/profile";
import type { Traits } from "../device/surroundings";
import { WakeLock } from "../device/wakeLock";
import type { BlobStore } from "../store/blobStore";
import type { Records } from "../store/records";
import { maxThreads } from "../trainer/runtimeThreads";
import type { DeviceFacts, OwnerConditions } from "./model";
import { BUDGET_STEP_BYTES, leastBattery } from "./ownerSettings";

export class BrowserDevice {
  readonly #surroundings = new BrowserSurroundings();
  readonly #conditions: DeviceConditions;
  readonly #wakeLock = new WakeLock();
  readonly #show: (facts: Partial<DeviceFacts>) => void;
  #chosen: OwnerConditions;

  constructor(
    private readonly records: Records,
    private readonly store: BlobStore,
    conditions: OwnerConditions,
    show: (facts: Partial<DeviceFacts>) => void,
  ) {
    this.#chosen = conditions;
    this.#show = show;
    this.#conditions = new DeviceConditions(this.#surroundings, this.#choices());
    this.#surroundings.subscribe(() => this.#showReadings());
    this.#showReadings();
  }

  get conditions(): Conditions {
    return this.#conditions;
  }

  /** What does not change, for the views. */
  async showTraits(): Promise<void> {
    const traits = await this.#surroundings.traits();
    this.#show({
      system: systemText(traits),
      cores: traits.processors,
      maxThreads: maxThreads(),
      suggestedBytes: Math.floor(suggestedBudgetBytes(traits.memoryBytes) / BUDGET_STEP_BYTES) * BUDGET_STEP_BYTES,
    });
  }

  profile(budgetBytes: number): ProfileSource {
    return BrowserProfile.of(this.#surroundings, this.records, this.store, budgetBytes);
  }

  setConditions(conditions: OwnerConditions): void {
    this.#chosen = conditions;
    this.#conditions.choose(this.#choices());
    this.#showReadings();
  }

  /** Keeps the screen on meanwhile: a phone that goes dark ends its pages. */
  setTraining(isTraining: boolean): void {
    void (isTraining ? this.#wakeLock.hold() : this.#wakeLock.release());
  }

  #choices(): OwnerChoices {
    const { battery } = this.#surroundings.readings();
    const least = leastBattery(this.#chosen, battery === null ? null : shownBattery(battery));
    return {
      whenHidden: this.#chosen.trainHidden,
      whenMetered: this.#chosen.allowMetered,
      onlyCharging: this.#chosen.onlyWhileCharging,
      minBatteryPercent: least === 0 ? null : least,
      window: null,
    };
  }

  #showReadings(): void {
    const readings = this.#surroundings.readings();
    const choices = this.#choices();
    // A battery that can be read only now, or no longer, changes the limit that holds where none was chosen.
    if (choices.minBatteryPercent !== this.#conditions.choices.minBatteryPercent) this.#conditions.choose(choices);
    this.#show({
      battery: readings.battery === null ? null : shownBattery(readings.battery),
      pressure: readings.pressure ?? "",
      unreadable: unreadable(choices, readings),
    });
  }
}

function shownBattery({ percent, charging }: { readonly percent: number; readonly charging: boolean }) {
  return { percent, isCharging: charging };
}

function systemText({ browser, model, platform, platformVersion }: Traits): string {
  return [browser, model, `${platform} ${platformVersion}`.trim()].filter((part) => part !== "").join(", ");
}
