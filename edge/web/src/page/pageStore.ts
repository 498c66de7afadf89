/** The one state of the page. Views see it at most once per frame; a hidden page is not drawn at all. */

import { FIRST_STATE, type PageState } from "./model";

export class PageStore {
  #state: PageState = FIRST_STATE;
  #isDue = false;
  #show: (state: PageState) => void = () => {};

  get state(): PageState {
    return this.#state;
  }

  /** Shows the state with `show`, now and after every change. */
  showWith(show: (state: PageState) => void): void {
    this.#show = show;
    show(this.#state);
  }

  change(change: Partial<PageState>): void {
    this.#state = { ...this.#state, ...change };
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.#show(this.#state);
    });
  }
}
