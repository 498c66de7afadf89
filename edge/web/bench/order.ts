/** Whole orders through the page's trainer: blobs into the store, examples into the data store, the update out. */

import type { BlobRef, WorkOrder } from "../src/contracts/plan";
import { DataStore } from "../src/data/dataStore";
import type { LocalData } from "../src/data/examples";
import { openStore } from "../src/store/openStore";
import type { Progress } from "../src/trainer/trainer";
import { WorkerTrainer } from "../src/trainer/workerTrainer";

const STORE = "bench-blobs";
const DATA = "bench-data";

const trainer = new WorkerTrainer();
const seen: Progress[] = [];

export const orders = {
  ready: () => trainer.ready(),
  pause: () => trainer.pause(),
  resume: () => trainer.resume(),
  kill: () => trainer.kill(),
  seen: () => seen,
  async storeBlob(address: string, digest: string) {
    const data = new Uint8Array(await (await fetch(address)).arrayBuffer());
    const ref: BlobRef = { digest, size: data.length, encoding: "raw", encoded_size: data.length };
    const { store, kind } = await openStore(STORE);
    await store.append(ref, data);
    await store.complete(ref);
    return kind;
  },
  /** Examples of float32 and int64 classes. */
  async storeData(x: number[], shape: number[], y: number[]) {
    const data: LocalData = {
      where: "bench",
      x: { values: Float32Array.from(x), shape },
      y: { values: y, shape: [y.length] },
    };
    const store = await DataStore.open(DATA);
    await store.clear();
    await store.add({ kind: "arrays", name: "bench", data });
  },
  /** `order` with its `data_seed` as text; the update is put to `address`. */
  async train(order: Omit<WorkOrder, "data_seed"> & { data_seed: string }, threads: number, address: string) {
    seen.length = 0;
    const whole: WorkOrder = { ...order, data_seed: BigInt(order.data_seed), artifact_signature: new Uint8Array(0) };
    const request = { order: whole, store: STORE, data: DATA, threads, selfTest: true };
    const { update, ...trained } = await trainer.train(request, (progress) => seen.push(progress));
    await fetch(address, { method: "PUT", body: update as Uint8Array<ArrayBuffer> });
    return trained;
  },
};
