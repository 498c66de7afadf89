/**
 * An artifact ready to run: a training step is an ordinary graph whose outputs are the next step's inputs.
 *
 * A session knows nothing of methods, devices or data; it owns the values of all state tensors of its programs. The
 * runtime copies inputs into its memory and outputs out of it, so a value never overwrites the one it is made from.
 */

import * as ort from "onnxruntime-web/wasm";
import { ArtifactCorrupt, DeviceRefused } from "../contracts/errors";
import { type ArtifactManifest, type Program, programOf } from "../contracts/manifest";
import {
  byteCount,
  concreteShape,
  elementCount,
  emptyData,
  GRADIENT_SUM,
  isCarried,
  TEACHER,
  type Tensor,
  type TensorSpec,
} from "../contracts/tensors";
import type { MemoryMeter } from "./memory";
import { isOutOfMemory } from "./outOfMemory";
import { loadGraph, requireRelease, version } from "./runtime";

/** Values by tensor name: fed inputs, or what an order brought. */
export type Tensors = ReadonlyMap<string, Tensor>;

/** Where state comes from; `get` may make the value anew each time. */
export interface StateSource {
  has(name: string): boolean;
  get(name: string): Tensor | undefined;
}

interface LoadedProgram {
  readonly program: Program;
  readonly graph: ort.InferenceSession;
  /** Inputs of the graph that are state, and those that are fed. The exporter may drop inputs that are not used. */
  readonly read: readonly string[];
  readonly fed: readonly string[];
  /** Graph output -> state tensor it is the next value of. */
  readonly written: ReadonlyMap<string, string>;
  /** Graph output -> loss or metric of one number. */
  readonly scalars: ReadonlyMap<string, string>;
  /** Sums that the program uses up: zero afterwards. */
  readonly consumed: readonly string[];
}

export class Session {
  readonly #manifest: ArtifactManifest;
  readonly #files: (name: string) => Promise<Uint8Array>;
  readonly #meter: MemoryMeter;
  readonly #specs: ReadonlyMap<string, TensorSpec>;
  readonly #carried = new Map<string, TensorSpec>();
  readonly #programs = new Map<string, LoadedProgram>();
  readonly #state = new Map<string, ort.Tensor>();

  /**
   * @param files reads the verified bytes of a file of the artifact
   * @throws DeviceRefused when this release of the runtime is too old for the artifact
   */
  constructor(manifest: ArtifactManifest, files: (name: string) => Promise<Uint8Array>, meter: MemoryMeter) {
    requireRelease(manifest.minimum_runtime_version);
    this.#manifest = manifest;
    this.#files = files;
    this.#meter = meter;
    this.#specs = new Map(manifest.tensors.map((spec) => [spec.name, spec]));
    for (const program of manifest.programs) {
      for (const name of [...program.inputs, ...program.outputs.map((output) => output.tensor)]) {
        const spec = this.#spec(name);
        if (isCarried(spec)) this.#carried.set(name, spec);
      }
    }
  }

  /**
   * Takes the values of all state from `source`. Slots and accumulators that did not come become zero; a teacher's
   * tensor is the received value of the tensor it is named after, unless one is there for it.
   *
   * @throws ArtifactCorrupt where a tensor is missing or has another shape or dtype than the manifest's
   */
  loadState(source: StateSource): void {
    this.#meter.hold(-this.#stateBytes());
    this.#state.clear();
    for (const spec of this.#carried.values()) this.#state.set(spec.name, stateValue(spec, source));
    this.#meter.hold(this.#stateBytes());
  }

  /**
   * One step: the state takes the program's outputs; its scalar loss and metrics are given back.
   *
   * @param feeds every input of the program that is not state
   * @throws PlanError when there is no such program, DeviceRefused when the runtime could not execute it
   */
  async run(name: string, feeds: Tensors): Promise<Map<string, number>> {
    const loaded = this.#programs.get(name) ?? (await this.#load(programOf(this.#manifest, name)));
    const inputs: Record<string, ort.Tensor> = {};
    for (const input of loaded.read) inputs[input] = this.#present(input);
    for (const input of loaded.fed) {
      const value = feeds.get(input);
      if (value === undefined) {
        throw new DeviceRefused(`program '${name}' takes '${input}', which this agent does not feed; update it`);
      }
      inputs[input] = ortTensor(value);
    }
    let outputs: ort.InferenceSession.OnnxValueMapType;
    try {
      outputs = await loaded.graph.run(inputs, [...loaded.written.keys(), ...loaded.scalars.keys()]);
    } catch (error) {
      throw failure(`program '${name}' failed in onnxruntime-web: ${describe(error)}; lower the batch size`, error);
    }
    let more = 0;
    for (const output of loaded.written.keys()) more += bytesOf(outputs[output] as ort.Tensor);
    for (const input of loaded.fed) more += bytesOf(inputs[input] as ort.Tensor);
    this.#meter.note(more);
    for (const [output, tensor] of loaded.written) {
      this.#state.get(tensor)?.dispose();
      this.#state.set(tensor, outputs[output] as ort.Tensor);
    }
    for (const sum of loaded.consumed) (this.#present(sum).data as Float32Array).fill(0);
    const values = new Map<string, number>();
    for (const [output, tensor] of loaded.scalars) {
      values.set(tensor, Number((outputs[output] as ort.Tensor).data[0]));
    }
    return values;
  }

  /** The present value of a state tensor; the next {@link run} puts another in its place. */
  read(name: string): Tensor {
    const spec = this.#carried.get(name);
    if (spec === undefined) {
      const known = [...this.#carried.keys()].slice(0, 5).join(", ");
      throw new DeviceRefused(`no program carries a tensor '${name}', they carry ${known}, ...; order others`);
    }
    const value = this.#present(name);
    return { dtype: spec.dtype, shape: value.dims, data: value.data as Tensor["data"] };
  }

  /** Gives the runtime's graphs back. Its memory does not shrink by that. */
  async release(): Promise<void> {
    for (const loaded of this.#programs.values()) await loaded.graph.release();
    this.#programs.clear();
    this.#state.clear();
  }

  async #load(program: Program): Promise<LoadedProgram> {
    const bytes = await this.#files(program.file);
    let graph: ort.InferenceSession;
    try {
      graph = await loadGraph(bytes);
    } catch (error) {
      throw failure(`onnxruntime-web ${version()} cannot load ${program.file}: ${describe(error)}`, error);
    }
    this.#meter.note(bytes.byteLength);
    const accepted = program.inputs.filter((name) => graph.inputNames.includes(name));
    const read = accepted.filter((name) => this.#carried.has(name));
    const written = new Map<string, string>();
    const scalars = new Map<string, string>();
    for (const { name, tensor } of program.outputs) {
      const spec = this.#spec(tensor);
      if (isCarried(spec)) written.set(name, tensor);
      else if (spec.shape.every((size) => size === 1)) scalars.set(name, tensor);
    }
    const results = new Set(written.values());
    const loaded = {
      program,
      graph,
      read,
      fed: accepted.filter((name) => !this.#carried.has(name)),
      written,
      scalars,
      consumed: read.filter((name) => name.endsWith(GRADIENT_SUM) && !results.has(name)),
    };
    this.#programs.set(program.name, loaded);
    return loaded;
  }

  #present(name: string): ort.Tensor {
    const value = this.#state.get(name);
    if (value === undefined) throw new DeviceRefused(`tensor '${name}' has no value yet; load the weights first`);
    return value;
  }

  #spec(name: string): TensorSpec {
    const spec = this.#specs.get(name);
    if (spec === undefined) throw new ArtifactCorrupt(`the manifest has no tensor '${name}'; order the artifact again`);
    return spec;
  }

  #stateBytes(): number {
    return this.#state.size === 0 ? 0 : [...this.#carried.values()].reduce((sum, spec) => sum + byteCount(spec), 0);
  }
}

function stateValue(spec: TensorSpec, source: StateSource): ort.Tensor {
  const isOwn = source.has(spec.name) || spec.role !== "teacher" || !spec.name.endsWith(TEACHER);
  const name = isOwn ? spec.name : spec.name.slice(0, -TEACHER.length);
  const shape = concreteShape(spec);
  const value = source.get(name);
  if (value === undefined) {
    if (spec.role !== "slot" && spec.role !== "accumulator") {
      throw new ArtifactCorrupt(`the weights hold no ${spec.role} '${name}' that the artifact needs; order again`);
    }
    return ortTensor({ dtype: spec.dtype, shape, data: emptyData(spec.dtype, elementCount(spec)) });
  }
  if (value.dtype !== spec.dtype || value.shape.length !== shape.length || value.shape.some((n, i) => n !== shape[i])) {
    throw new ArtifactCorrupt(
      `weights: '${name}' is ${value.dtype}[${value.shape}], the artifact says ${spec.dtype}[${shape}]; order again`,
    );
  }
  // A copy: what came lies in one buffer with all other tensors, which would stay as long as the last of them.
  return ortTensor({ ...value, data: value.data.slice() });
}

function ortTensor(value: Tensor): ort.Tensor {
  return new ort.Tensor(value.dtype, value.data as Float32Array, value.shape);
}

function bytesOf(tensor: ort.Tensor): number {
  return (tensor.data as Float32Array).byteLength;
}

function failure(message: string, cause: unknown): Error {
  return isOutOfMemory(cause) ? new Error(message, { cause }) : new DeviceRefused(message, { cause });
}

/** The runtime's own errors are Errors; an abort of its code may be a number or an object without a message. */
function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
