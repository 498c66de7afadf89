/**
 * ONNX Runtime's WebAssembly build, called as its own JavaScript calls it, with every tensor kept in its memory.
 *
 * That JavaScript (onnxruntime-web) copies each input into the runtime's memory before a run and each output out of it
 * afterwards, into buffers made anew. A training step's state is both: 100 MB a step for a model of 6.6 million
 * parameters, a third of the step's time and two more copies of the state (measured). Functions and their arguments are
 * those of onnxruntime-web's `wasm-types.ts`, of the very release that is bundled.
 */

import { DeviceRefused } from "../contracts/errors";
import { DTYPE_BYTES, type DType, type TensorData } from "../contracts/tensors";
import { runtimeMemory } from "./memory";
import { maxThreads } from "./runtimeThreads";

export const NAME = "onnxruntime_web";

/** Release of onnxruntime-web whose two files are bundled. */
export const VERSION = "1.30.0";

/** Addresses of the runtime's two files. */
export interface RuntimeFiles {
  readonly wasm: string;
  readonly mjs: string;
}

/** ONNX's numbers of element types. */
const ELEMENT_TYPES: Readonly<Record<DType, number>> = {
  float32: 1,
  uint8: 2,
  int8: 3,
  int32: 6,
  int64: 7,
  bool: 9,
  float16: 10,
};
const POINTER_BYTES = 4;
const IN_CPU_MEMORY = 1;
const ALL_OPTIMIZATIONS = 99;
const SEQUENTIAL = 0;
const LOG_ERRORS = 3;

/** What a loaded module has. Handles and pointers are numbers; 0 and, of `Get...` and `Run`, anything but 0 is failure. */
interface OrtModule {
  _malloc(size: number): number;
  _free(pointer: number): void;
  stackSave(): number;
  stackRestore(stack: number): void;
  stackAlloc(size: number): number;
  getValue(pointer: number, type: "i32" | "*"): number;
  setValue(pointer: number, value: number, type: "*"): void;
  UTF8ToString(pointer: number): string;
  lengthBytesUTF8(text: string): number;
  stringToUTF8(text: string, pointer: number, size: number): void;
  _OrtInit(threads: number, logLevel: number): number;
  _OrtGetLastError(code: number, message: number): number;
  _OrtCreateSessionOptions(...values: readonly (number | boolean)[]): number;
  _OrtAddSessionConfigEntry(options: number, key: number, value: number): number;
  _OrtReleaseSessionOptions(options: number): number;
  _OrtCreateSession(data: number, size: number, options: number): number | Promise<number>;
  _OrtReleaseSession(session: number): number;
  _OrtGetInputOutputCount(session: number, inputs: number, outputs: number): number;
  _OrtGetInputOutputMetadata(session: number, index: number, name: number, type: number): number;
  _OrtFree(pointer: number): number;
  _OrtCreateTensor(type: number, data: number, size: number, dims: number, rank: number, place: number): number;
  _OrtReleaseTensor(tensor: number): number;
  _OrtRun(
    session: number,
    inputNames: number,
    inputs: number,
    inputCount: number,
    outputNames: number,
    outputCount: number,
    outputs: number,
    options: number,
  ): number | Promise<number>;
}

type ModuleFactory = (options: { numThreads: number; locateFile: () => string }) => Promise<OrtModule>;

/** The runtime in its own memory. There is one in a worker's life. */
export class WasmRuntime {
  private constructor(readonly module: OrtModule) {}

  /** Loads the runtime with `threads` threads, fewer where there are not so many. */
  static async load(threads: number, files: RuntimeFiles): Promise<WasmRuntime> {
    const { default: factory } = (await import(/* @vite-ignore */ files.mjs)) as { default: ModuleFactory };
    const numThreads = Math.max(1, Math.min(threads, maxThreads()));
    const runtime = new WasmRuntime(await factory({ numThreads, locateFile: () => files.wasm }));
    if (runtime.module._OrtInit(numThreads, LOG_ERRORS) !== 0) runtime.fail("the runtime could not be initialised");
    return runtime;
  }

  /** @throws Error when there is no more memory */
  allocate(bytes: number): number {
    const pointer = this.module._malloc(Math.max(bytes, 1)) >>> 0;
    if (pointer === 0) throw new Error(`failed to allocate ${bytes} bytes for the runtime: out of memory`);
    return pointer;
  }

  /** `count` elements at `pointer`. The view is good until memory grows, which any call of the runtime may do. */
  view(dtype: DType, pointer: number, count: number): TensorData {
    const buffer = runtimeMemory().buffer as ArrayBuffer;
    switch (dtype) {
      case "float32":
        return new Float32Array(buffer, pointer, count);
      case "float16":
        return new Uint16Array(buffer, pointer, count);
      case "int64":
        return new BigInt64Array(buffer, pointer, count);
      case "int32":
        return new Int32Array(buffer, pointer, count);
      case "int8":
        return new Int8Array(buffer, pointer, count);
      default:
        return new Uint8Array(buffer, pointer, count);
    }
  }

  /** Handle of a tensor over the `count` elements at `pointer`, which stay whose they are. */
  tensor(dtype: DType, shape: readonly number[], pointer: number, count: number): number {
    const { module } = this;
    const stack = module.stackSave();
    try {
      const dims = module.stackAlloc(Math.max(1, shape.length) * POINTER_BYTES);
      for (const [i, size] of shape.entries()) module.setValue(dims + i * POINTER_BYTES, size, "*");
      const bytes = count * DTYPE_BYTES[dtype];
      const tensor = module._OrtCreateTensor(ELEMENT_TYPES[dtype], pointer, bytes, dims, shape.length, IN_CPU_MEMORY);
      return tensor === 0 ? this.fail("no tensor could be made") : tensor;
    } finally {
      module.stackRestore(stack);
    }
  }

  /**
   * Session of a graph. As the native runtime loads it: no memory patterns, and equal operations are not merged, for
   * what a graph has twice is computed twice on purpose, so that it need not be kept.
   */
  async session(graph: Uint8Array): Promise<number> {
    const { module } = this;
    const data = this.allocate(graph.length);
    const options = module._OrtCreateSessionOptions(
      ...[ALL_OPTIMIZATIONS, false, false, SEQUENTIAL, false, 0, 0, LOG_ERRORS, 0, 0],
    );
    const texts: number[] = [];
    try {
      if (options === 0) this.fail("no session options could be made");
      texts.push(this.text("optimization.disable_specified_optimizers"), this.text("CommonSubexpressionElimination"));
      if (module._OrtAddSessionConfigEntry(options, texts[0] as number, texts[1] as number) !== 0) {
        this.fail("an optimiser could not be turned off");
      }
      (this.view("uint8", data, graph.length) as Uint8Array).set(graph);
      const session = await module._OrtCreateSession(data, graph.length, options);
      return session === 0 ? this.fail("no session could be made") : session;
    } finally {
      if (options !== 0) module._OrtReleaseSessionOptions(options);
      for (const pointer of [data, ...texts]) module._free(pointer);
    }
  }

  /** Names of a session's inputs. */
  inputNames(session: number): string[] {
    const { module } = this;
    const stack = module.stackSave();
    try {
      const told = module.stackAlloc(2 * POINTER_BYTES);
      if (module._OrtGetInputOutputCount(session, told, told + POINTER_BYTES) !== 0) this.fail("no inputs are told");
      const count = module.getValue(told, "i32");
      return Array.from({ length: count }, (_, index) => {
        if (module._OrtGetInputOutputMetadata(session, index, told, told + POINTER_BYTES) !== 0) {
          this.fail(`input ${index} is not told`);
        }
        const [name, type] = [module.getValue(told, "*") >>> 0, module.getValue(told + POINTER_BYTES, "*") >>> 0];
        const text = module.UTF8ToString(name);
        for (const pointer of [name, type]) if (pointer !== 0) module._OrtFree(pointer);
        return text;
      });
    } finally {
      module.stackRestore(stack);
    }
  }

  /** Runs a session on inputs and outputs by name (pointers to text) and tensor, all of them there beforehand. */
  async run(
    session: number,
    inputs: readonly (readonly [number, number])[],
    outputs: readonly (readonly [number, number])[],
  ): Promise<void> {
    const { module } = this;
    const stack = module.stackSave();
    try {
      const list = (values: readonly number[]): number => {
        const pointer = module.stackAlloc(values.length * POINTER_BYTES);
        for (const [i, value] of values.entries()) module.setValue(pointer + i * POINTER_BYTES, value, "*");
        return pointer;
      };
      const names = (pairs: typeof inputs): number => list(pairs.map(([name]) => name));
      const tensors = (pairs: typeof inputs): number => list(pairs.map(([, tensor]) => tensor));
      const ended = await module._OrtRun(
        session,
        names(inputs),
        tensors(inputs),
        inputs.length,
        names(outputs),
        outputs.length,
        tensors(outputs),
        0,
      );
      if (ended !== 0) this.fail("the run failed");
    } finally {
      module.stackRestore(stack);
    }
  }

  /** Pointer to `text` as the runtime reads it; to be freed. */
  text(text: string): number {
    const size = this.module.lengthBytesUTF8(text) + 1;
    const pointer = this.allocate(size);
    this.module.stringToUTF8(text, pointer, size);
    return pointer;
  }

  /** Throws what the runtime says of its last error. */
  fail(what: string): never {
    const { module } = this;
    const stack = module.stackSave();
    const told = module.stackAlloc(2 * POINTER_BYTES);
    module._OrtGetLastError(told, told + POINTER_BYTES);
    const pointer = module.getValue(told + POINTER_BYTES, "*") >>> 0;
    const message = pointer === 0 ? "no reason given" : module.UTF8ToString(pointer);
    module.stackRestore(stack);
    throw new Error(`${what}: ${message}`);
  }
}

/** DeviceRefused when the bundled release is older than `minimum`. */
export function requireRelease(minimum: string): void {
  const [found, needed] = [release(VERSION), release(minimum)];
  for (let i = 0; i < needed.length; i += 1) {
    const difference = (found[i] ?? 0) - (needed[i] ?? 0);
    if (difference > 0) return;
    if (difference < 0) {
      throw new DeviceRefused(
        `artifact needs onnxruntime-web ${minimum} or newer, this page has ${VERSION}; reload it`,
      );
    }
  }
}

function release(text: string): number[] {
  return text
    .split(".")
    .slice(0, 3)
    .map((part) => Number.parseInt(part, 10) || 0);
}
