/** Orders whose assignments are settled: one that arrives again is a replay, and is not carried out again. */

import { ReplayedOrder } from "../contracts/errors";
import type { WorkOrder } from "../contracts/plan";
import type { Records } from "../store/records";
import { orderDigest } from "./orderIdentity";

const KEY = "settled";
const REMEMBERED = 1000;
/** Assignments at a time whose orders have arrived and are not settled yet: one in hand, and refused ones. */
const MOST_OPEN = 16;

export class SettledWork {
  readonly #open = new Map<string, Set<string>>();

  constructor(private readonly records: Records) {}

  /** Remembers `order` as one to settle. @throws ReplayedOrder when exactly this order is settled. */
  async check(order: WorkOrder): Promise<void> {
    const digest = await orderDigest(order);
    if ((await this.#digests()).includes(digest)) {
      throw new ReplayedOrder(
        `order ${order.assignment_id.slice(0, 12)} of round ${order.round} is settled here; order anew`,
      );
    }
    const digests = this.#open.get(order.assignment_id) ?? new Set();
    this.#open.delete(order.assignment_id);
    this.#open.set(order.assignment_id, digests.add(digest));
    const [oldest] = this.#open.keys();
    if (this.#open.size > MOST_OPEN && oldest !== undefined) this.#open.delete(oldest);
  }

  /** Remembers every order that arrived for the assignment; nothing when none has. */
  async settle(assignmentId: string): Promise<void> {
    const digests = this.#open.get(assignmentId);
    if (digests === undefined) return;
    this.#open.delete(assignmentId);
    await this.records.put(KEY, [...(await this.#digests()), ...digests].slice(-REMEMBERED));
  }

  async #digests(): Promise<string[]> {
    return (await this.records.get<string[]>(KEY)) ?? [];
  }
}
