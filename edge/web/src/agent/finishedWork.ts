/**
 * The assignment that is trained but not yet acknowledged, kept so that a killed tab does not train it again.
 *
 * Order of writing: the update's blob, then the record that names it. A blob that no record names may be evicted.
 */

import type { BlobRef, WorkOrder } from "../contracts/plan";
import type { TrainReport } from "../contracts/report";
import type { BlobStore } from "../store/blobStore";
import type { Records } from "../store/records";

const PREFIX = "work/";
const VERSION = 1;

export interface FinishedRecord {
  readonly order: WorkOrder;
  readonly report: TrainReport;
}

interface Kept extends FinishedRecord {
  readonly version: number;
  readonly at: number;
}

export class FinishedWork {
  constructor(
    private readonly records: Records,
    private readonly store: BlobStore,
  ) {}

  async save(record: FinishedRecord, update: Uint8Array): Promise<void> {
    const ref = record.report.update;
    await this.store.pin([...orderDigests(record.order), ref.digest]);
    if (!(await this.store.has(ref.digest))) {
      await this.store.delete(ref.digest);
      await this.store.append(ref, update);
      await this.store.complete(ref);
    }
    const kept: Kept = { version: VERSION, at: Date.now(), order: record.order, report: record.report };
    await this.records.put(PREFIX + record.order.assignment_id, kept);
  }

  /** The record goes first. */
  async forget(assignmentId: string): Promise<void> {
    const kept = await this.records.get<Kept>(PREFIX + assignmentId);
    if (kept === undefined) return;
    await this.records.delete(PREFIX + assignmentId);
    await this.store.delete(kept.report.update.digest);
  }

  /** The newest one with its update; every other is forgotten. */
  async load(): Promise<{ record: FinishedRecord; update: Uint8Array } | null> {
    const found: Kept[] = [];
    for (const key of await this.records.keys(PREFIX)) {
      const kept = await this.records.get<Kept>(key);
      if (kept?.version === VERSION && (await this.store.has(kept.report.update.digest))) found.push(kept);
      else await this.records.delete(key);
    }
    found.sort((a, b) => b.at - a.at);
    for (const old of found.slice(1)) await this.forget(old.order.assignment_id);
    const [newest] = found;
    if (newest === undefined) return null;
    try {
      const update = await this.store.read(newest.report.update.digest);
      return { record: newest, update };
    } catch {
      await this.forget(newest.order.assignment_id); // the stored bytes are not the update: it is trained again
      return null;
    }
  }
}

/** Blobs that an order names itself. */
export function orderDigests(order: WorkOrder): string[] {
  return orderRefs(order).map((ref) => ref.digest);
}

export function orderRefs(order: WorkOrder): BlobRef[] {
  return [order.artifact, order.weights, ...(order.constants === null ? [] : [order.constants])];
}
