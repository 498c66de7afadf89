/** How hard the processor is pressed, by the Compute Pressure API where there is one. */

import type { Pressure } from "./surroundings";

// No browser's types have it yet. Source: W3C, Compute Pressure Level 1.
interface PressureObserverLike {
  observe(source: "cpu", options: { sampleInterval: number }): Promise<void>;
  disconnect(): void;
}
type PressureObserverClass = new (
  changed: (records: readonly { readonly state: Pressure }[]) => void,
) => PressureObserverLike;

const SAMPLE_MS = 5000;

/** Calls `changed` with every new state; gives back what ends that. Without the API, or the right to it: never. */
export function observePressure(changed: (state: Pressure) => void): () => void {
  const Observer = (globalThis as { PressureObserver?: PressureObserverClass }).PressureObserver;
  if (Observer === undefined) return () => {};
  const observer = new Observer((records) => {
    const last = records.at(-1);
    if (last !== undefined) changed(last.state);
  });
  observer.observe("cpu", { sampleInterval: SAMPLE_MS }).catch(() => {}); // refused: nothing is told
  return () => observer.disconnect();
}
