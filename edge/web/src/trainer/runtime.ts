/** onnxruntime-web on the CPU: where it is loaded from, with how many threads, and how it loads a graph. */

import { hexToBytes } from "@noble/hashes/utils";
import * as ort from "onnxruntime-web/wasm";
import { DeviceRefused } from "../contracts/errors";
import { maxThreads } from "./runtimeThreads";

export const NAME = "onnxruntime_web";

/** Addresses of the runtime's own two files; without them, those beside its module. */
export interface RuntimeFiles {
  readonly wasm: string;
  readonly mjs: string;
}

/** Sets the runtime up, once in a worker's life. It is loaded with its first graph, or by {@link warmUp}. */
export function configure(threads: number, files: RuntimeFiles | null): void {
  ort.env.wasm.numThreads = Math.max(1, Math.min(threads, maxThreads()));
  ort.env.wasm.proxy = false;
  ort.env.logLevel = "error";
  if (files !== null) ort.env.wasm.wasmPaths = { wasm: files.wasm, mjs: files.mjs };
}

/** Release of the runtime. */
export function version(): string {
  return ort.env.versions.web ?? ort.env.versions.common;
}

/** Loads the runtime without a graph of anyone's: one that adds a number to itself. */
export async function warmUp(): Promise<void> {
  const session = await ort.InferenceSession.create(SMALLEST_GRAPH, { executionProviders: ["wasm"] });
  await session.release();
}

/** DeviceRefused when this release is older than `minimum`. */
export function requireRelease(minimum: string): void {
  const [found, needed] = [release(version()), release(minimum)];
  for (let i = 0; i < needed.length; i += 1) {
    const difference = (found[i] ?? 0) - (needed[i] ?? 0);
    if (difference > 0) return;
    if (difference < 0) {
      throw new DeviceRefused(
        `artifact needs onnxruntime-web ${minimum} or newer, this page has ${version()}; reload it`,
      );
    }
  }
}

/**
 * A graph ready to run. As the native runtime loads it: no memory patterns, and equal operations are not merged, for
 * what a graph has twice is computed twice on purpose, so that it need not be kept.
 */
export function loadGraph(bytes: Uint8Array): Promise<ort.InferenceSession> {
  return ort.InferenceSession.create(bytes, {
    executionProviders: ["wasm"],
    graphOptimizationLevel: "all",
    enableMemPattern: false,
    enableCpuMemArena: false,
    logSeverityLevel: 3,
    extra: { optimization: { disable_specified_optimizers: "CommonSubexpressionElimination" } },
  });
}

function release(text: string): number[] {
  return text
    .split(".")
    .slice(0, 3)
    .map((part) => Number.parseInt(part, 10) || 0);
}

/** ONNX: opset 13, y = x + x, float32 scalars. */
const SMALLEST_GRAPH = hexToBytes(
  "08083a2d0a0e0a01780a017812017922034164641201675a0b0a017812060a0408011200620b0a017912060a04080112" + "0042040a00100d",
);
