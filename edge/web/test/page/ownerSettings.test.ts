import { expect, test } from "vitest";
import { FIRST_STATE } from "../../src/page/model";
import { leastBattery, readSettings, writeSettings } from "../../src/page/ownerSettings";
import { IndexedDbRecords } from "../../src/store/indexedDbRecords";

const BATTERY = { percent: 50, isCharging: false };

test("leastBattery is 20 % where nothing was chosen and a battery can be read", () => {
  expect(leastBattery(FIRST_STATE.conditions, BATTERY)).toBe(20);
  expect(leastBattery(FIRST_STATE.conditions, null)).toBe(0);
  expect(leastBattery({ ...FIRST_STATE.conditions, minBatteryPercent: 0 }, BATTERY)).toBe(0);
  expect(leastBattery({ ...FIRST_STATE.conditions, minBatteryPercent: 35 }, null)).toBe(35);
});

test("settings are kept, and what an older page did not keep has its default", async () => {
  const records = new IndexedDbRecords("settings-test");
  expect((await readSettings(records)).wantsTraining).toBe(true);
  await writeSettings(records, { ...(await readSettings(records)), wantsTraining: false, budgetBytes: 96_000_000 });
  await records.put("page/settings", { ...(await readSettings(records)), conditions: { threads: 3 } });
  const read = await readSettings(records);
  expect(read).toMatchObject({ wantsTraining: false, budgetBytes: 96_000_000 });
  expect(read.conditions).toEqual({ ...FIRST_STATE.conditions, threads: 3 });
});
