/** Charge and charger, by the Battery Status API where there is one: Chromium's browsers, on secure pages. */

import type { Battery } from "./surroundings";

// Source: W3C, Battery Status API.
interface BatteryManager extends EventTarget {
  readonly charging: boolean;
  readonly level: number;
}

/** Calls `changed` with what is so now and with every change; gives back what ends that. Without the API: never. */
export function observeBattery(changed: (battery: Battery) => void): () => void {
  const { getBattery } = navigator as { getBattery?: () => Promise<BatteryManager> };
  if (getBattery === undefined) return () => {};
  let hasEnded = false;
  let end = () => {};
  getBattery.call(navigator).then(
    (manager) => {
      if (hasEnded) return;
      const tell = () => changed({ percent: Math.round(manager.level * 100), charging: manager.charging });
      for (const event of ["chargingchange", "levelchange"]) manager.addEventListener(event, tell);
      end = () => {
        for (const event of ["chargingchange", "levelchange"]) manager.removeEventListener(event, tell);
      };
      tell();
    },
    () => {}, // refused: nothing is told
  );
  return () => {
    hasEnded = true;
    end();
  };
}
