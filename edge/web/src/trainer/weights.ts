/** The weights of an order as the state of a session: masked tensors travel packed and are whole here. */

import { BITS, expand, KEPT, MASK, PLACES, SHAPE, unpackMask } from "../contracts/packing";
import { decodeTensors } from "../contracts/tensorFile";
import type { Tensor } from "../contracts/tensors";
import type { StateSource } from "./session";

/** Tensors by name of one or two safetensors files; a packed one is made whole each time it is asked for. */
export class Weights implements StateSource {
  readonly #tensors: ReadonlyMap<string, Tensor>;
  readonly #where: string;
  readonly #packed: ReadonlySet<string>;
  readonly #masks = new Map<string, Tensor>();

  /**
   * @param constants a second file, of what changes rarely
   * @throws ArtifactCorrupt when one of them is no such file
   */
  constructor(weights: Uint8Array, constants: Uint8Array | null, where: string) {
    const tensors = decodeTensors(weights, where);
    if (constants !== null) for (const [name, value] of decodeTensors(constants, where)) tensors.set(name, value);
    this.#tensors = tensors;
    this.#where = where;
    this.#packed = new Set(
      [...tensors.keys()].filter((name) => name.endsWith(SHAPE)).map((name) => name.slice(0, -SHAPE.length)),
    );
  }

  has(name: string): boolean {
    if (this.#tensors.has(name) || this.#tensors.has(name + KEPT)) return true;
    return name.endsWith(MASK) && this.#packed.has(name.slice(0, -MASK.length));
  }

  get(name: string): Tensor | undefined {
    const whole = this.#tensors.get(name);
    if (whole !== undefined) return whole;
    if (name.endsWith(MASK) && this.#packed.has(name.slice(0, -MASK.length))) {
      return this.#mask(name.slice(0, -MASK.length));
    }
    const kept = this.#tensors.get(name + KEPT);
    return kept === undefined ? undefined : expand(kept, this.#mask(name), this.#where);
  }

  #mask(name: string): Tensor {
    let mask = this.#masks.get(name);
    if (mask === undefined) {
      const parts = new Map<string, Tensor>();
      for (const suffix of [BITS, PLACES, SHAPE]) {
        const part = this.#tensors.get(name + suffix);
        if (part !== undefined) parts.set(name + suffix, part);
      }
      mask = unpackMask(name, parts, this.#where);
      this.#masks.set(name, mask);
    }
    return mask;
  }
}
