/** What the owner chose on this page, over reloads. */

import type { Records } from "../store/records";
import { FIRST_STATE, type OwnerConditions } from "./model";

export interface OwnerSettings {
  readonly wantsTraining: boolean;
  /** 0: nothing was chosen, the suggestion holds. */
  readonly budgetBytes: number;
  readonly conditions: OwnerConditions;
}

const KEY = "page/settings";
const FIRST: OwnerSettings = { wantsTraining: true, budgetBytes: 0, conditions: FIRST_STATE.conditions };

/** With what newer versions added in its default. */
export async function readSettings(records: Records): Promise<OwnerSettings> {
  const kept = await records.get<Partial<OwnerSettings>>(KEY);
  return { ...FIRST, ...kept, conditions: { ...FIRST.conditions, ...kept?.conditions } };
}

export function writeSettings(records: Records, settings: OwnerSettings): Promise<void> {
  return records.put(KEY, settings);
}

export function forgetSettings(records: Records): Promise<void> {
  return records.delete(KEY);
}
