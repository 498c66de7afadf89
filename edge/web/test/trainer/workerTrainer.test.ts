import { afterEach, expect, test, vi } from "vitest";
import { WorkOrder } from "../../src/contracts/plan";
import type { Trained, TrainRequest } from "../../src/trainer/trainer";
import type { FromWorker, ToWorker } from "../../src/trainer/workerMessages";
import { WorkerTrainer } from "../../src/trainer/workerTrainer";

/** A worker that does what the test says, for the failures that a real one cannot be made to have. */
class ScriptedWorker {
  onmessage: ((event: { data: FromWorker }) => void) | null = null;
  onerror: ((event: { message: string; preventDefault: () => void }) => void) | null = null;
  onmessageerror: (() => void) | null = null;
  isTerminated = false;
  readonly heard: ToWorker[] = [];
  postMessage(message: ToWorker): void {
    this.heard.push(message);
  }
  terminate(): void {
    this.isTerminated = true;
  }
  say(data: FromWorker): void {
    this.onmessage?.({ data });
  }
}

const READY = { runtime: "onnxruntime_web", version: "1.30.0", idleBytes: 1 << 24, maxThreads: 2 };
const TRAINED: Trained = {
  numExamples: 4,
  steps: 3,
  loss: 1,
  metrics: {},
  stepMsP50: 1,
  stepMsP95: 2,
  peakBytes: 9,
  idleBytes: 3,
  threads: 1,
  labels: null,
  update: new Uint8Array(3),
};

function request(digest: string, threads = 1): TrainRequest {
  const blob = { digest, size: 1, encoding: "raw" as const, encoded_size: 1 };
  const order = WorkOrder.make({
    assignment_id: "a",
    federation: "f",
    device: "d",
    round: 0,
    attempt: 0,
    artifact: blob,
    weights: blob,
    schedule: { epochs: 1, steps: 0, turns: [{ program: "train", advance_batch: true }] },
    batch: 4,
    last_batch: "drop",
    data_seed: 1n,
    hyper: {},
    upload: [],
  });
  return { order, store: "s", data: "d", threads, selfTest: false };
}

function scripted() {
  const workers: ScriptedWorker[] = [];
  const trainer = new WorkerTrainer(() => {
    const worker = new ScriptedWorker();
    workers.push(worker);
    return worker as unknown as Worker;
  });
  const latest = () => workers.at(-1) as ScriptedWorker;
  const settle = () => new Promise((resolve) => setTimeout(resolve, 0));
  return { workers, trainer, latest, settle };
}

afterEach(() => vi.unstubAllGlobals());

test("a worker is started when it is needed, and kept for the same artifact alone", async () => {
  const { workers, trainer, latest, settle } = scripted();
  expect(workers).toHaveLength(0);
  const ready = trainer.ready();
  latest().say({ type: "ready", ready: READY });
  expect(await ready).toEqual(READY);
  for (const [digest, count] of [
    ["a", 1],
    ["a", 1],
    ["b", 2],
  ] as const) {
    const progress: number[] = [];
    const training = trainer.train(request(digest), ({ step }) => progress.push(step));
    if (count === 2) latest().say({ type: "ready", ready: READY });
    await settle();
    expect(latest().heard.at(-1)?.type).toBe("train");
    latest().say({ type: "progress", progress: { step: 2, totalSteps: 3, loss: 1 } });
    latest().say({ type: "trained", trained: TRAINED });
    expect(await training).toBe(TRAINED);
    expect(progress).toEqual([2]);
    expect(workers).toHaveLength(count);
  }
  expect(workers.map((worker) => worker.isTerminated)).toEqual([true, false]);
});

test("more threads than memory can be shared by are not started", async () => {
  const { trainer, latest } = scripted();
  trainer.train(request("a", 4), () => undefined).catch(() => undefined);
  expect(latest().heard[0]).toEqual({ type: "start", threads: 1 });
  trainer.kill();
  vi.stubGlobal("crossOriginIsolated", true);
  vi.stubGlobal("navigator", { hardwareConcurrency: 2 });
  trainer.train(request("a", 4), () => undefined).catch(() => undefined);
  expect(latest().heard[0]).toEqual({ type: "start", threads: 2 });
  trainer.kill();
});

test("a refusal keeps its code and the worker; a crash and lack of memory end it", async () => {
  const { workers, trainer, latest, settle } = scripted();
  const failing = async (how: (worker: ScriptedWorker) => void) => {
    const training = trainer.train(request("a"), () => undefined);
    latest().say({ type: "ready", ready: READY });
    await settle();
    how(latest());
    return training.then(
      () => "trained",
      (error: { code: string }) => error.code,
    );
  };
  const failed = (code: string) => (worker: ScriptedWorker) =>
    worker.say({ type: "failed", code, message: "m", hint: "", peakBytes: 0 });
  expect(await failing(failed("bad-data"))).toBe("bad-data");
  expect(workers).toHaveLength(1);
  expect(await failing(failed("out-of-memory"))).toBe("out-of-memory");
  expect(workers[0]?.isTerminated).toBe(true);
  const crash = (worker: ScriptedWorker) => worker.onerror?.({ message: "gone", preventDefault: () => undefined });
  expect(await failing(crash)).toBe("trainer-crashed");
  expect(await failing(() => trainer.kill())).toBe("trainer-killed");
  expect(workers.every((worker) => worker.isTerminated)).toBe(true);
});

test("a runtime that does not load fails both who waits for it and the training", async () => {
  const { trainer, latest } = scripted();
  const ready = trainer.ready();
  const training = trainer.train(request("a"), () => undefined);
  latest().say({ type: "failed", code: "trainer-failed", message: "no wasm", hint: "", peakBytes: 0 });
  const ends = await Promise.allSettled([ready, training]);
  expect(ends.map((end) => end.status === "rejected" && end.reason.message)).toEqual(["no wasm", "no wasm"]);
});

test("a pause holds over the start of a worker", () => {
  const { trainer, latest } = scripted();
  trainer.pause();
  trainer.ready().catch(() => undefined);
  expect(latest().heard.map((message) => message.type)).toEqual(["start", "pause"]);
  trainer.resume();
  expect(latest().heard.at(-1)).toEqual({ type: "resume" });
  trainer.kill();
});
