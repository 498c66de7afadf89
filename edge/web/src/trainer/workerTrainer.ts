/** Trains in a worker of its own: the page stays alive, and ending the worker gives all of its memory back. */

import { ApportionError } from "../contracts/errors";
import { OUT_OF_MEMORY } from "./outOfMemory";
import { maxThreads } from "./runtimeThreads";
import type { Progress, Ready, Trained, Trainer, TrainRequest } from "./trainer";
import type { FromWorker, ToWorker } from "./workerMessages";

export const CRASHED = "trainer-crashed";

/** A failure in the worker, with the code it had there. */
export class TrainerFailed extends ApportionError {
  override readonly code: string;

  constructor(code: string, message: string, hint = "") {
    super(message, { hint });
    this.code = code;
  }
}

interface Running {
  readonly worker: Worker;
  readonly threads: number;
  readonly ready: Promise<Ready>;
  /** Digest of the artifact that it holds; empty before the first. A peak is one artifact's. */
  artifact: string;
}

interface Pending {
  readonly onProgress: (progress: Progress) => void;
  readonly resolve: (trained: Trained) => void;
  readonly reject: (error: Error) => void;
}

/** Starts its worker when it is first needed, and a fresh one for another artifact or another number of threads. */
export class WorkerTrainer implements Trainer {
  #running: Running | null = null;
  #pending: Pending | null = null;
  #isPaused = false;
  readonly #makeWorker: () => Worker;

  constructor(makeWorker: () => Worker = newWorker) {
    this.#makeWorker = makeWorker;
  }

  ready(): Promise<Ready> {
    return (this.#running ?? this.#start(1)).ready;
  }

  async train(request: TrainRequest, onProgress: (progress: Progress) => void): Promise<Trained> {
    if (this.#pending !== null) throw new TrainerFailed("trainer-busy", "a training runs already; wait for its end");
    const threads = Math.max(1, Math.min(request.threads, maxThreads()));
    const digest = request.order.artifact.digest;
    let running = this.#running;
    if (running === null || running.threads !== threads || ![digest, ""].includes(running.artifact)) {
      this.kill();
      running = this.#start(threads);
    }
    running.artifact = digest;
    const { worker, ready } = running;
    return new Promise((resolve, reject) => {
      this.#pending = { onProgress, resolve, reject };
      ready.then(
        () => {
          if (this.#running?.worker === worker) send(worker, { type: "train", request });
        },
        () => undefined, // whatever ended the worker has told the one who waits
      );
    });
  }

  pause(): void {
    this.#isPaused = true;
    if (this.#running !== null) send(this.#running.worker, { type: "pause" });
  }

  resume(): void {
    this.#isPaused = false;
    if (this.#running !== null) send(this.#running.worker, { type: "resume" });
  }

  kill(): void {
    this.#end(new TrainerFailed("trainer-killed", "the training was ended"));
  }

  #start(threads: number): Running {
    const worker = this.#makeWorker();
    let isLoaded = false;
    const ready = new Promise<Ready>((resolve, reject) => {
      const fail = (error: Error): void => {
        reject(error);
        if (this.#running?.worker === worker) this.#end(error);
      };
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if (this.#running?.worker !== worker) return;
        if (data.type === "ready") {
          isLoaded = true;
          resolve(data.ready);
        } else if (data.type === "progress") this.#pending?.onProgress(data.progress);
        else if (data.type === "trained") this.#settle((pending) => pending.resolve(data.trained));
        else {
          const error = new TrainerFailed(data.code, data.message, data.hint);
          // Of a runtime that could not load, or that ran out of memory, nothing more can be expected.
          if (!isLoaded || data.code === OUT_OF_MEMORY) fail(error);
          else this.#settle((pending) => pending.reject(error));
        }
      };
      worker.onerror = (event) => {
        event.preventDefault();
        fail(new TrainerFailed(CRASHED, `the training worker ended: ${event.message || "no reason given"}`));
      };
      worker.onmessageerror = () => fail(new TrainerFailed(CRASHED, "a message of the training worker was unreadable"));
      this.#abort = reject;
    });
    ready.catch(() => undefined); // it may be that nobody waits for it
    this.#running = { worker, threads, ready, artifact: "" };
    send(worker, { type: "start", threads });
    if (this.#isPaused) send(worker, { type: "pause" });
    return this.#running;
  }

  #abort: (error: Error) => void = () => undefined;

  #end(error: Error): void {
    this.#running?.worker.terminate();
    this.#running = null;
    this.#abort(error);
    this.#settle((pending) => pending.reject(error));
  }

  #settle(how: (pending: Pending) => void): void {
    const pending = this.#pending;
    this.#pending = null;
    if (pending !== null) how(pending);
  }
}

function newWorker(): Worker {
  return new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "apportion-trainer" });
}

function send(worker: Worker, message: ToWorker): void {
  worker.postMessage(message);
}
