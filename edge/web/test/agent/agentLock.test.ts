import { describe, expect, it } from "vitest";
import { holdAgent, type Locks } from "../../src/agent/agentLock";

/** Locks as a browser's tabs share them: one holder, the others wait in line. */
class SharedLocks implements Locks {
  readonly #last = new Map<string, Promise<void>>();

  request: Locks["request"] = (name, { signal }, held) => {
    const before = this.#last.get(name) ?? Promise.resolve();
    let isGiven = false;
    const turn = before.then(() => {
      if (signal?.aborted) return undefined;
      isGiven = true;
      return held({});
    });
    this.#last.set(
      name,
      turn.then(() => undefined),
    );
    return new Promise((resolve, reject) => {
      turn.then(resolve, reject);
      signal?.addEventListener("abort", () => {
        if (!isGiven) reject(new DOMException("the request was aborted", "AbortError"));
      });
    });
  };
}

describe("an agent that two tabs want", () => {
  it("is held by one, and by the other when that one lets go", async () => {
    const locks = new SharedLocks();
    let isElsewhere = false;
    const release = await holdAgent("one", () => expect.unreachable(), undefined, locks);
    const second = holdAgent("one", () => (isElsewhere = true), undefined, locks);
    await new Promise((resolve) => setTimeout(resolve, 1_600));
    expect(isElsewhere).toBe(true);
    release();
    (await second)();
  });

  it("does not keep one on another store waiting", async () => {
    const locks = new SharedLocks();
    await holdAgent("one", () => expect.unreachable(), undefined, locks);
    await holdAgent("other", () => expect.unreachable(), undefined, locks);
  });

  it("is no longer waited for when the tab gives up", async () => {
    const locks = new SharedLocks();
    await holdAgent("one", () => expect.unreachable(), undefined, locks);
    const abort = new AbortController();
    const second = holdAgent("one", () => expect.unreachable(), abort.signal, locks);
    setTimeout(() => abort.abort(), 10);
    await expect(second).rejects.toThrow("aborted");
  });

  it("is held at once where the browser has no locks", async () => {
    (await holdAgent("one", () => expect.unreachable(), undefined, undefined))();
  });
});
