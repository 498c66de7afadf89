/** How fast this device's link is, from the transfers it makes anyway; their median, as on the Python agent. */

import type { LinkMeasured } from "../agent/profileSource";
import type { Records } from "../store/records";
import { median } from "./lines";

/** Shorter transfers are round trips more than anything else. */
export const LEAST_BYTES = 256_000;
const KEPT_TRANSFERS = 8;
const KEY = "device/link";

interface Transfer {
  readonly bytesPerS: number;
  readonly at: number;
  readonly method: string;
}

export interface Rate {
  readonly bytesPerS: number;
  readonly measuredAt: number;
  readonly method: string;
  readonly transfers: number;
}

export class LinkRate {
  constructor(
    private readonly records: Records,
    private readonly now: () => number = () => Date.now() / 1000,
  ) {}

  async add({ bytes, seconds, method }: LinkMeasured): Promise<void> {
    if (bytes < LEAST_BYTES || !(seconds > 0)) return;
    const transfer: Transfer = { bytesPerS: bytes / seconds, at: this.now(), method };
    await this.records.put(KEY, [...(await this.#transfers()), transfer].slice(-KEPT_TRANSFERS));
  }

  /** null until a transfer was long enough. */
  async rate(): Promise<Rate | null> {
    const transfers = await this.#transfers();
    const last = transfers.at(-1);
    if (last === undefined) return null;
    const bytesPerS = median(transfers.map((transfer) => transfer.bytesPerS));
    return { bytesPerS, measuredAt: last.at, method: last.method, transfers: transfers.length };
  }

  async #transfers(): Promise<readonly Transfer[]> {
    return (await this.records.get<Transfer[]>(KEY)) ?? [];
  }
}
