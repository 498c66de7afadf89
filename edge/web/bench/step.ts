/** Steps of an artifact on its self-test's formula values, for a script that drives this page and takes the time. */

import wasmModule from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import wasmFile from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";
import { parseManifest } from "../src/contracts/manifest";
import { encodeTensors } from "../src/contracts/tensorFile";
import { isCarried } from "../src/contracts/tensors";
import { countMemories, MemoryMeter, runtimeBytes } from "../src/trainer/memory";
import { runStep, TRAIN } from "../src/trainer/microBatches";
import { VERSION, WasmRuntime } from "../src/trainer/runtime";
import { checkSelfTest, loadSelfTest } from "../src/trainer/selfTest";
import { Session, type Tensors } from "../src/trainer/session";
import { orders } from "./order";
import { maxThreads } from "../src/trainer/runtimeThreads";

countMemories();
Object.assign(globalThis, { orders });

interface Opened {
  readonly session: Session;
  readonly manifest: ReturnType<typeof parseManifest>;
  readonly meter: MemoryMeter;
  feeds: Tensors;
}

let opened: Opened | null = null;

const bench = {
  /** Loads the runtime and an artifact; `folder` is an address that ends with a slash. */
  async open(folder: string, threads: number) {
    const absolute = (address: string): string => new URL(address, location.href).href;
    const runtime = await WasmRuntime.load(threads, { wasm: absolute(wasmFile), mjs: absolute(wasmModule) });
    const idleBytes = runtimeBytes();
    const manifest = parseManifest(await fetched(`${folder}manifest.json`));
    const meter = new MemoryMeter();
    const session = new Session(runtime, manifest, (name) => fetched(folder + name), meter);
    const selfTest = await checkSelfTest(session, manifest, manifest.self_test.losses.length);
    opened = { session, manifest, meter, feeds: new Map() };
    return { idleBytes, selfTest, version: VERSION, isIsolated: crossOriginIsolated, maxThreads: maxThreads() };
  },
  /** Formula values again, `batch` examples. */
  load(batch: number) {
    const { session, manifest } = now();
    now().feeds = loadSelfTest(session, manifest, batch);
  },
  /** Milliseconds and loss of each of `count` steps. */
  async steps(count: number) {
    const { session, manifest, feeds } = now();
    const ms: number[] = [];
    const losses: number[] = [];
    for (let i = 0; i < count; i += 1) {
      const started = performance.now();
      losses.push((await runStep(session, manifest, TRAIN, feeds)).get("loss") ?? Number.NaN);
      ms.push(performance.now() - started);
    }
    return { ms, losses, runtimeBytes: runtimeBytes(), peakBytes: now().meter.peakBytes };
  },
  /** Puts all state to `address`, as a tensor file. */
  async send(address: string) {
    const { session, manifest } = now();
    const carried = new Set(manifest.programs.flatMap((p) => [...p.inputs, ...p.outputs.map((o) => o.tensor)]));
    const state = manifest.tensors.filter((spec) => isCarried(spec) && carried.has(spec.name));
    const body = encodeTensors(new Map(state.map((spec) => [spec.name, session.read(spec.name)])));
    await fetch(address, { method: "PUT", body });
  },
};

export type Bench = typeof bench;
Object.assign(globalThis, { bench });

function now(): Opened {
  if (opened === null) throw new Error("no artifact is open");
  return opened;
}

async function fetched(address: string): Promise<Uint8Array> {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}
