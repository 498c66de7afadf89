/**
 * An artifact ready to run: a training step is an ordinary graph whose outputs are the next step's inputs.
 *
 * A session knows nothing of methods, devices or data; it owns the values of all state tensors of its programs. Every
 * state tensor that a program writes has two buffers. A step reads one and writes the other, then they swap. Bound to
 * its own input, an update would be written before the backward pass has read the old weight.
 */

import { ArtifactCorrupt, DeviceRefused } from "../contracts/errors";
import { type ArtifactManifest, type Program, programOf } from "../contracts/manifest";
import {
  BATCH,
  concreteShape,
  GRADIENT_SUM,
  isCarried,
  TEACHER,
  type Tensor,
  type TensorSpec,
} from "../contracts/tensors";
import { HeapValue } from "./heapValue";
import type { MemoryMeter } from "./memory";
import { isOutOfMemory } from "./outOfMemory";
import { requireRelease, VERSION, type WasmRuntime } from "./runtime";

/** Values by tensor name: fed inputs, or what an order brought. */
export type Tensors = ReadonlyMap<string, Tensor>;

/** Where state comes from; `get` may make the value anew each time. */
export interface StateSource {
  has(name: string): boolean;
  get(name: string): Tensor | undefined;
}

interface State {
  readonly spec: TensorSpec;
  /** One buffer of what no program writes (frozen tensors) and of sums, which nothing but their own addition reads. */
  readonly buffers: readonly [HeapValue, HeapValue];
  present: 0 | 1;
}

interface LoadedProgram {
  readonly session: number;
  /** Name in the graph, and the tensor. The exporter may drop inputs that a program does not use. */
  readonly read: readonly (readonly [number, State])[];
  readonly fed: readonly (readonly [number, TensorSpec])[];
  readonly written: readonly (readonly [number, State])[];
  /** Losses and metrics of one number. */
  readonly scalars: readonly (readonly [number, string, HeapValue])[];
  /** Sums that the program uses up: zero afterwards. */
  readonly consumed: readonly State[];
}

export class Session {
  readonly #runtime: WasmRuntime;
  readonly #manifest: ArtifactManifest;
  readonly #files: (name: string) => Promise<Uint8Array>;
  readonly #meter: MemoryMeter;
  readonly #specs: ReadonlyMap<string, TensorSpec>;
  readonly #state = new Map<string, State>();
  readonly #fed = new Map<string, HeapValue>();
  readonly #programs = new Map<string, LoadedProgram>();

  /**
   * @param files reads the verified bytes of a file of the artifact
   * @throws DeviceRefused when this release of the runtime is too old for the artifact
   */
  constructor(
    runtime: WasmRuntime,
    manifest: ArtifactManifest,
    files: (name: string) => Promise<Uint8Array>,
    meter: MemoryMeter,
  ) {
    requireRelease(manifest.minimum_runtime_version);
    this.#runtime = runtime;
    this.#manifest = manifest;
    this.#files = files;
    this.#meter = meter;
    this.#specs = new Map(manifest.tensors.map((spec) => [spec.name, spec]));
    const written = new Set(manifest.programs.flatMap(({ outputs }) => outputs.map(({ tensor }) => tensor)));
    const named = new Set([...manifest.programs.flatMap(({ inputs }) => inputs), ...written]);
    for (const spec of [...named].map((name) => this.#spec(name)).filter(isCarried)) {
      const first = new HeapValue(runtime, spec);
      const isDouble = written.has(spec.name) && !spec.name.endsWith(GRADIENT_SUM);
      this.#state.set(spec.name, {
        spec,
        buffers: [first, isDouble ? new HeapValue(runtime, spec) : first],
        present: 0,
      });
    }
    meter.note();
  }

  /**
   * Takes the values of all state from `source`. Slots and accumulators that did not come become zero; a teacher's
   * tensor is the received value of the tensor it is named after, unless one is there for it.
   *
   * @throws ArtifactCorrupt where a tensor is missing or has another shape or dtype than the manifest's
   */
  loadState(source: StateSource): void {
    for (const state of this.#state.values()) loadValue(state.spec, state.buffers[state.present], source);
    this.#meter.note();
  }

  /**
   * One step: the state takes the program's outputs; its scalar loss and metrics are given back.
   *
   * @param feeds every input of the program that is not state
   * @throws PlanError when there is no such program, DeviceRefused when the runtime could not execute it
   */
  async run(name: string, feeds: Tensors): Promise<Map<string, number>> {
    const loaded = this.#programs.get(name) ?? (await this.#load(programOf(this.#manifest, name)));
    const inputs = loaded.read.map(([text, state]) => [text, state.buffers[state.present].tensor] as const);
    for (const [text, spec] of loaded.fed) {
      const value = feeds.get(spec.name);
      if (value === undefined) {
        throw new DeviceRefused(`program '${name}' takes '${spec.name}', which this agent does not feed; update it`);
      }
      inputs.push([text, this.#feed(spec, value).tensor]);
    }
    const outputs = loaded.written.map(([text, state]) => [text, next(state).tensor] as const);
    for (const [text, , value] of loaded.scalars) outputs.push([text, value.tensor]);
    try {
      await this.#runtime.run(loaded.session, inputs, outputs);
    } catch (error) {
      throw failure(`program '${name}' failed in onnxruntime-web: ${describe(error)}; lower the batch size`, error);
    }
    this.#meter.note();
    for (const [, state] of loaded.written) state.present = state.present === 0 ? 1 : 0;
    for (const state of loaded.consumed) state.buffers[state.present].clear();
    return new Map(loaded.scalars.map(([, tensor, value]) => [tensor, value.number()]));
  }

  /** The present value of a state tensor, a copy. */
  read(name: string): Tensor {
    const state = this.#state.get(name);
    if (state === undefined) {
      const known = [...this.#state.keys()].slice(0, 5).join(", ");
      throw new DeviceRefused(`no program carries a tensor '${name}', they carry ${known}, ...; order others`);
    }
    return state.buffers[state.present].read();
  }

  async #load(program: Program): Promise<LoadedProgram> {
    const runtime = this.#runtime;
    let session: number;
    try {
      const bytes = await this.#files(program.file);
      this.#meter.note(bytes.byteLength);
      session = await runtime.session(bytes);
    } catch (error) {
      throw failure(`onnxruntime-web ${VERSION} cannot load ${program.file}: ${describe(error)}`, error);
    }
    this.#meter.note();
    const accepted = new Set(runtime.inputNames(session));
    const inputs = program.inputs.filter((name) => accepted.has(name)).map((name) => this.#spec(name));
    const results = new Set(program.outputs.map(({ tensor }) => tensor));
    const read = inputs.filter(isCarried).map((spec) => [runtime.text(spec.name), this.#carried(spec.name)] as const);
    const fed = inputs.filter((spec) => !isCarried(spec)).map((spec) => [runtime.text(spec.name), spec] as const);
    const written: (readonly [number, State])[] = [];
    const scalars: (readonly [number, string, HeapValue])[] = [];
    for (const { name, tensor } of program.outputs) {
      const spec = this.#spec(tensor);
      if (isCarried(spec)) written.push([runtime.text(name), this.#carried(tensor)]);
      else if (spec.shape.every((size) => size === 1)) {
        scalars.push([runtime.text(name), tensor, new HeapValue(runtime, spec)]);
      }
    }
    const consumed = read
      .map(([, state]) => state)
      .filter(({ spec }) => spec.name.endsWith(GRADIENT_SUM) && !results.has(spec.name));
    const loaded = { session, read, fed, written, scalars, consumed };
    this.#programs.set(program.name, loaded);
    return loaded;
  }

  /** `value` in the buffer of its tensor, another one where it has another shape than the one before. */
  #feed(spec: TensorSpec, value: Tensor): HeapValue {
    let buffer = this.#fed.get(spec.name);
    if (buffer === undefined || !buffer.hasShape(value.shape)) {
      const batch = spec.shape[0] === BATCH ? (value.shape[0] ?? 0) : 1;
      const wanted = concreteShape(spec, batch);
      if (value.dtype !== spec.dtype || String(value.shape) !== String(wanted)) {
        throw new DeviceRefused(
          `'${spec.name}' is fed ${value.dtype}[${value.shape}], the artifact takes ${spec.dtype}[${wanted}]`,
        );
      }
      buffer?.free();
      buffer = new HeapValue(this.#runtime, spec, batch);
      this.#fed.set(spec.name, buffer);
    }
    buffer.write(value.data);
    return buffer;
  }

  #carried(name: string): State {
    return this.#state.get(name) as State;
  }

  #spec(name: string): TensorSpec {
    const spec = this.#specs.get(name);
    if (spec === undefined) throw new ArtifactCorrupt(`the manifest has no tensor '${name}'; order the artifact again`);
    return spec;
  }
}

function next(state: State): HeapValue {
  return state.buffers[state.present === 0 ? 1 : 0];
}

function loadValue(spec: TensorSpec, target: HeapValue, source: StateSource): void {
  const isOwn = source.has(spec.name) || spec.role !== "teacher" || !spec.name.endsWith(TEACHER);
  const name = isOwn ? spec.name : spec.name.slice(0, -TEACHER.length);
  const value = source.get(name);
  if (value === undefined) {
    if (spec.role !== "slot" && spec.role !== "accumulator") {
      throw new ArtifactCorrupt(`the weights hold no ${spec.role} '${name}' that the artifact needs; order again`);
    }
    target.clear();
    return;
  }
  if (value.dtype !== spec.dtype || !target.hasShape(value.shape)) {
    throw new ArtifactCorrupt(
      `weights: '${name}' is ${value.dtype}[${value.shape}], the artifact says ${spec.dtype}[${spec.shape}]; ` +
        "order again",
    );
  }
  target.write(value.data);
}

function failure(message: string, cause: unknown): Error {
  if (isOutOfMemory(cause)) return new Error(message, { cause });
  if (cause instanceof ArtifactCorrupt) return cause;
  return new DeviceRefused(message, { cause });
}

/** An abort of the runtime's code may be a number or an object without a message. */
function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
