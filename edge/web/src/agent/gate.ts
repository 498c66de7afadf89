/** Lets an assignment go on while the owner's conditions are met, and says what it waits for when they are not. */

import type { Assignment } from "./assignment";
import type { Conditions, Purpose } from "./conditions";

const CHECK_S = 5;

export class Gate {
  #askedAt = Number.NEGATIVE_INFINITY;
  #isNews = false;

  constructor(private readonly conditions: Conditions) {}

  /** Whether it is time to ask again; asking is then counted from `now`. */
  isDue(now: number): boolean {
    if (now - this.#askedAt < CHECK_S) return false;
    this.#askedAt = now;
    return true;
  }

  /** Another answer is possible: it is time to ask at once. */
  changed(): void {
    this.#askedAt = Number.NEGATIVE_INFINITY;
  }

  /** Whether `work` may do that now; `work` then knows what it waits for, or that it waits for nothing. */
  lets(work: Assignment, purpose: Purpose, isTraining = false): boolean {
    const { neededBytes, waitingFor: before } = work;
    const found = this.conditions.unmet({ purpose, neededBytes, isTraining, before });
    this.#isNews ||= (found?.waitingFor ?? null) !== before;
    work.waitingFor = found?.waitingFor ?? null;
    work.waiting = found?.reason ?? "";
    return found === null;
  }

  /** Whether an answer since the last call was another than the one before: the agent then reports at once. */
  takeNews(): boolean {
    const isNews = this.#isNews;
    this.#isNews = false;
    return isNews;
  }
}
