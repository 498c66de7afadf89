/** How many threads a step may use here; asked by the page too, which does not load the runtime. */

/** More do not pay off on phones, whose other cores are small ones. */
const MOST_THREADS = 8;

/** Without cross-origin isolation memory is not shared, and there is one. */
export function maxThreads(): number {
  if (globalThis.crossOriginIsolated !== true) return 1;
  return Math.max(1, Math.min(MOST_THREADS, globalThis.navigator?.hardwareConcurrency ?? 1));
}
