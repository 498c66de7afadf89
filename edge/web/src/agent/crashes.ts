/**
 * What follows when a trainer dies in the middle of an order: it begins once more, or the order is refused for good.
 *
 * An order whose trainer ran out of memory is not begun again: it would end the same way. A page that dies itself, as
 * phones end the tabs that take too much, leaves a note of what it was training and treats its own deaths alike.
 */

import { ApportionError } from "../contracts/errors";
import type { Refuse } from "../contracts/messages";
import type { Records } from "../store/records";
import type { Assignment } from "./assignment";
import type { AgentSettings } from "./settings";

const NOTE = "training";
const OUT_OF_MEMORY = "out-of-memory";
const CRASHED = "trainer-crashed";
/** Times that a page may end in the middle of one order, for whatever reason, before the order is refused. */
const OWN_DEATHS = 3;
const MOST_REFUSALS = 100;

interface Note {
  readonly identity: string;
  readonly deaths: number;
}

export class Crashes {
  readonly #forGood = new Map<string, Refuse>();
  #before: Note | null = null;

  constructor(
    private readonly settings: AgentSettings,
    private readonly records: Records,
  ) {}

  /** Reads what an earlier page has left. */
  async restore(): Promise<void> {
    this.#before = (await this.records.get<Note>(NOTE)) ?? null;
  }

  /** The refusal of an order that was given up for good, else null. */
  known(work: Assignment): Refuse | null {
    const before = this.#before;
    if (before?.identity === work.identity && before.deaths >= OWN_DEATHS && !this.#forGood.has(work.identity)) {
      this.#give(work, work.crashRefusal(`the page ended ${before.deaths} times in the middle of it`, this.settings));
    }
    return this.#forGood.get(work.identity) ?? null;
  }

  /** Remembers that `work` is being trained, should this page not live to say how it ended. */
  async begins(work: Assignment): Promise<void> {
    const deaths = this.#before?.identity === work.identity ? this.#before.deaths : 0;
    await this.records.put(NOTE, { identity: work.identity, deaths: deaths + 1 } satisfies Note);
  }

  /** Nothing is being trained any more, and this page lives. */
  async over(): Promise<void> {
    this.#before = null;
    await this.records.delete(NOTE);
  }

  /** The refusal that follows from `error`, which ended the training of `work`; null when it is to be begun again. */
  after(work: Assignment, error: unknown): Refuse | null {
    const reason = error instanceof Error ? error.message : String(error);
    const code = error instanceof ApportionError ? error.code : CRASHED;
    if (code === OUT_OF_MEMORY) {
      const text = `out of memory (${reason}); it is not begun again, plan a smaller cut`;
      return this.#give(work, work.refusal(code, text, { budget: this.settings.budgetBytes }));
    }
    if (code !== CRASHED) return work.refusal(code, reason);
    work.crashes += 1;
    // A killed trainer costs time, not the result: the order determines it, so it is begun again, once.
    if (work.crashes === 1) return null;
    return this.#give(work, work.crashRefusal(reason, this.settings));
  }

  #give(work: Assignment, refusal: Refuse): Refuse {
    this.#forGood.set(work.identity, refusal);
    const [oldest] = this.#forGood.keys();
    if (this.#forGood.size > MOST_REFUSALS && oldest !== undefined) this.#forGood.delete(oldest);
    return refusal;
  }
}
