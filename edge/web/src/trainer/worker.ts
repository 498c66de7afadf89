/** The worker that trains: holds the runtime, the local data and one artifact, until its page ends it. */

import wasmModule from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import wasmFile from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";
import { ApportionError } from "../contracts/errors";
import { openDataSource } from "../data/openDataSource";
import { openStore } from "../store/openStore";
import { ArtifactTraining } from "./artifactTraining";
import { countMemories, runtimeBytes } from "./memory";
import { isOutOfMemory, OUT_OF_MEMORY } from "./outOfMemory";
import { PauseGate } from "./pauseGate";
import { NAME, VERSION, WasmRuntime } from "./runtime";
import { maxThreads } from "./runtimeThreads";
import type { TrainRequest } from "./trainer";
import type { FromWorker, ToWorker } from "./workerMessages";

/** Between two messages about progress. */
const PROGRESS_MS = 250;

countMemories();

const gate = new PauseGate();
let training: ArtifactTraining | null = null;
let threads = 1;

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if (data.type === "pause") gate.close();
  else if (data.type === "resume") gate.open();
  else {
    const work = data.type === "start" ? start(data.threads) : train(data.request);
    work.then(
      ([message, transfer]) => self.postMessage(message, { transfer }),
      (error: unknown) => self.postMessage(failed(error)),
    );
  }
};

type Answer = readonly [FromWorker, Transferable[]];

async function start(wanted: number): Promise<Answer> {
  threads = Math.max(1, Math.min(wanted, maxThreads()));
  const files = { wasm: absolute(wasmFile), mjs: absolute(wasmModule) };
  training = new ArtifactTraining(await WasmRuntime.load(threads, files));
  const ready = { runtime: NAME, version: VERSION, idleBytes: runtimeBytes(), maxThreads: maxThreads() };
  return [{ type: "ready", ready }, []];
}

async function train(request: TrainRequest): Promise<Answer> {
  if (training === null) throw new Error("a training was asked for before the runtime was loaded");
  const { store } = await openStore(request.store);
  const data = await openDataSource(request.data);
  let toldAt = Number.NEGATIVE_INFINITY;
  const trained = await training.carryOut(request.order, {
    store,
    data,
    threads,
    selfTest: request.selfTest,
    between: () => gate.pass(),
    onProgress: (progress) => {
      const now = performance.now();
      if (progress.step < progress.totalSteps && now - toldAt < PROGRESS_MS) return;
      toldAt = now;
      self.postMessage({ type: "progress", progress } satisfies FromWorker);
    },
  });
  return [{ type: "trained", trained }, [trained.update.buffer]];
}

function failed(error: unknown): FromWorker {
  const isOurs = error instanceof ApportionError;
  const code = isOutOfMemory(error) ? OUT_OF_MEMORY : isOurs ? error.code : "trainer-failed";
  const message = error instanceof Error ? (isOurs ? error.message : `${error.name}: ${error.message}`) : String(error);
  return { type: "failed", code, message, hint: isOurs ? error.hint : "", peakBytes: training?.meter.peakBytes ?? 0 };
}

/** The runtime imports its module from inside itself: what is relative there is not what it is here. */
function absolute(address: string): string {
  return new URL(address, self.location.href).href;
}
