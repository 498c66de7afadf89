/** Time as the agent uses it: seconds that only rise, and a call at intervals. Tests give their own. */

export interface Clock {
  now(): number;
  /** Calls `tick` about every `seconds`; gives back what ends that. */
  every(seconds: number, tick: () => void): () => void;
}

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now() / 1000,
  every: (seconds, tick) => {
    const timer = setInterval(tick, seconds * 1000);
    return () => clearInterval(timer);
  },
};
