/** What the owner chose on this page, over reloads. */

import type { Records } from "../store/records";
import { type Battery, FIRST_STATE, type OwnerConditions } from "./model";

export interface OwnerSettings {
  readonly wantsTraining: boolean;
  /** 0: nothing was chosen, the suggestion holds. */
  readonly budgetBytes: number;
  readonly conditions: OwnerConditions;
}

const KEY = "page/settings";
const FIRST: OwnerSettings = { wantsTraining: true, budgetBytes: 0, conditions: FIRST_STATE.conditions };

/** Budgets are whole steps of these. */
export const BUDGET_STEP_BYTES = 64 * 2 ** 20;

/** A phone in use should last the day. */
const LEAST_BATTERY_PERCENT = 20;

/** The chosen limit, 0 for none. Not chosen: one only where a battery can be read, or it would never be met. */
export function leastBattery({ minBatteryPercent }: OwnerConditions, battery: Battery | null): number {
  return minBatteryPercent ?? (battery === null ? 0 : LEAST_BATTERY_PERCENT);
}

/** With what newer versions added in its default. */
export async function readSettings(records: Records): Promise<OwnerSettings> {
  const kept = await records.get<Partial<OwnerSettings>>(KEY);
  return { ...FIRST, ...kept, conditions: { ...FIRST.conditions, ...kept?.conditions } };
}

export function writeSettings(records: Records, settings: OwnerSettings): Promise<void> {
  return records.put(KEY, settings);
}
