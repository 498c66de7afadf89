/** A tensor in the runtime's memory: a buffer of ours that it reads and writes in place. */

import {
  byteCount,
  concreteShape,
  DTYPE_BYTES,
  elementCount,
  type Tensor,
  type TensorSpec,
} from "../contracts/tensors";
import type { WasmRuntime } from "./runtime";

export class HeapValue {
  readonly tensor: number;
  readonly #runtime: WasmRuntime;
  readonly #pointer: number;
  readonly #count: number;
  readonly #shape: readonly number[];
  readonly #spec: TensorSpec;

  /** Zeros. A batch dimension is of `batch` examples. */
  constructor(runtime: WasmRuntime, spec: TensorSpec, batch = 1) {
    this.#runtime = runtime;
    this.#spec = spec;
    this.#count = elementCount(spec, batch);
    this.#shape = concreteShape(spec, batch);
    this.#pointer = runtime.allocate(byteCount(spec, batch));
    this.tensor = runtime.tensor(spec.dtype, this.#shape, this.#pointer, this.#count);
    this.clear();
  }

  get bytes(): number {
    return this.#count * DTYPE_BYTES[this.#spec.dtype];
  }

  clear(): void {
    (this.#runtime.view("uint8", this.#pointer, this.bytes) as Uint8Array).fill(0);
  }

  /** Copies `data` in, of this dtype and so many elements. */
  write(data: Tensor["data"]): void {
    const source = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    (this.#runtime.view("uint8", this.#pointer, this.bytes) as Uint8Array).set(source);
  }

  hasShape(shape: readonly number[]): boolean {
    return shape.length === this.#shape.length && shape.every((size, i) => size === this.#shape[i]);
  }

  /** A copy. */
  read(): Tensor {
    const view = this.#runtime.view(this.#spec.dtype, this.#pointer, this.#count);
    const data = new (view.constructor as new (size: number) => typeof view)(this.#count);
    data.set(view as never);
    return { dtype: this.#spec.dtype, shape: this.#shape, data };
  }

  /** The first element. */
  number(): number {
    return Number(this.#runtime.view(this.#spec.dtype, this.#pointer, 1)[0]);
  }

  free(): void {
    this.#runtime.module._OrtReleaseTensor(this.tensor);
    this.#runtime.module._free(this.#pointer);
  }
}
