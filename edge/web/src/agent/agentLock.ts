/** One agent per store of a browser: two would write over each other, and push each other off the broker. */

/** As much of `navigator.locks` as is needed. */
export interface Locks {
  request(
    name: string,
    options: { readonly signal?: AbortSignal; readonly ifAvailable?: boolean },
    held: (lock: unknown) => Promise<void> | undefined,
  ): Promise<unknown>;
}

/** A page that was just reloaded waits so long for the one before it to let go, before it says that it waits. */
const HANDOVER_MS = 1_500;

/**
 * Resolves with what lets the store called `name` go, once this page has it; at once where the browser has no locks.
 *
 * @param onElsewhere called when another page has it; it goes on waiting then, until `signal` ends that.
 */
export async function holdAgent(
  name: string,
  onElsewhere: () => void,
  signal?: AbortSignal,
  locks: Locks | undefined = globalThis.navigator?.locks as Locks | undefined,
): Promise<() => void> {
  if (locks === undefined) return () => {};
  const patience = setTimeout(onElsewhere, HANDOVER_MS);
  try {
    return await new Promise<() => void>((resolve, reject) => {
      const held = () =>
        new Promise<void>((release) => {
          resolve(release);
        });
      locks.request(`apportion-agent-${name}`, signal === undefined ? {} : { signal }, held).catch(reject);
    });
  } finally {
    clearTimeout(patience);
  }
}
