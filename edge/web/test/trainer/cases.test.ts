/**
 * Whole orders as the Python agent's native session carried them out: same batches, losses and update.
 *
 * Cases are written by tests/export/web_case.py to the folder that APPORTION_CASES names; tests/web/test_trainer_in_node.py
 * does so.
 */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { expect, test } from "vitest";
import type { BlobRef, WorkOrder } from "../../src/contracts/plan";
import { decodeTensors } from "../../src/contracts/tensorFile";
import type { DataSource } from "../../src/data/dataSource";
import type { LocalData } from "../../src/data/examples";
import { FileStore } from "../../src/store/fileStore";
import { MemoryFiles } from "../../src/store/memoryStore";
import { ArtifactTraining } from "../../src/trainer/artifactTraining";
import { countMemories } from "../../src/trainer/memory";
import { VERSION, WasmRuntime } from "../../src/trainer/runtime";

interface Case {
  readonly order: Omit<WorkOrder, "data_seed"> & { readonly data_seed: string };
  readonly x: { readonly values: number[]; readonly shape: number[] };
  readonly y: number[];
  readonly expected: { readonly steps: number; readonly loss: number; readonly metrics: Record<string, number> };
}

const folder = process.env.APPORTION_CASES ?? "";
const names = folder === "" ? [] : readdirSync(folder).filter((name) => existsSync(`${folder}/${name}/case.json`));

test.each(names)("%s is carried out as natively", async (name) => {
  const place = `${folder}/${name}`;
  const { order: described, x, y, expected } = JSON.parse(readFileSync(`${place}/case.json`, "utf8")) as Case;
  const order: WorkOrder = {
    ...described,
    data_seed: BigInt(described.data_seed),
    artifact_signature: new Uint8Array(0),
  };
  const local: LocalData = {
    where: name,
    x: { values: Float32Array.from(x.values), shape: x.shape },
    y: { values: y, shape: [y.length] },
  };
  const data: DataSource = {
    summary: () => Promise.reject(new Error("nobody asks")),
    load: () => Promise.resolve(local),
  };
  const losses: number[] = [];
  const reached: number[] = [];
  let passed = 0;
  const trained = await new ArtifactTraining(await loaded()).carryOut(order, {
    store: await storeOf(place),
    data,
    threads: 1,
    selfTest: true,
    between: async () => {
      passed += 1;
    },
    onProgress: ({ loss, stepMs, peakBytes }) => {
      losses.push(loss);
      expect(stepMs).toBeGreaterThan(0);
      reached.push(peakBytes ?? 0);
    },
  });

  expect(trained.steps).toBe(expected.steps);
  expect(reached[0]).toBeGreaterThan(2 ** 20);
  expect(reached.at(-1)).toBeLessThanOrEqual(trained.peakBytes);
  expect(passed).toBe(expected.steps);
  expect(trained.loss).toBeCloseTo(expected.loss, 5);
  expect(losses.reduce((sum, loss) => sum + loss, 0) / losses.length).toBeCloseTo(trained.loss, 12);
  expect(trained.metrics).toEqual(expected.metrics);
  expect(trained.labels).toEqual([...new Set(y)].sort((a, b) => a - b));
  const wanted = decodeTensors(readFileSync(`${place}/expected.safetensors`), name);
  const update = decodeTensors(trained.update, name);
  expect([...update.keys()].sort()).toEqual([...wanted.keys()].sort());
  for (const [tensor, value] of wanted) {
    const found = update.get(tensor);
    expect(found?.shape, tensor).toEqual(value.shape);
    expect(distance(found?.data as Float32Array, value.data as Float32Array), tensor).toBeLessThan(1e-4);
  }
});

let runtime: WasmRuntime | null = null;

/** One for all: a worker has one. */
async function loaded(): Promise<WasmRuntime> {
  if (runtime === null) {
    const find = createRequire(import.meta.url).resolve;
    const mjs = find("onnxruntime-web/ort-wasm-simd-threaded.mjs");
    countMemories();
    const wasm = find("onnxruntime-web/ort-wasm-simd-threaded.wasm");
    runtime = await WasmRuntime.load(1, { mjs: pathToFileURL(mjs).href, wasm });
  }
  return runtime;
}

test("the bundled release is the one that is told", () => {
  const found = createRequire(import.meta.url).resolve("onnxruntime-web/ort-wasm-simd-threaded.wasm");
  const described = JSON.parse(readFileSync(join(dirname(found), "../package.json"), "utf8"));
  expect(VERSION).toBe(described.version);
});

async function storeOf(place: string): Promise<FileStore> {
  const store = new FileStore(new MemoryFiles());
  for (const file of readdirSync(place).filter((name) => name.startsWith("blob-"))) {
    const data = new Uint8Array(readFileSync(`${place}/${file}`));
    const ref: BlobRef = { digest: file.slice(5), size: data.length, encoding: "raw", encoded_size: data.length };
    await store.append(ref, data);
    await store.complete(ref);
  }
  return store;
}

/** Relative L2 distance. */
function distance(found: Float32Array, wanted: Float32Array): number {
  let difference = 0;
  let size = 0;
  for (let i = 0; i < wanted.length; i += 1) {
    difference += ((found[i] as number) - (wanted[i] as number)) ** 2;
    size += (wanted[i] as number) ** 2;
  }
  return Math.sqrt(difference / Math.max(size, 1e-24));
}
