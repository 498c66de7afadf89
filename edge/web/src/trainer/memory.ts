/**
 * What a training holds here: the runtime's linear memory, which grows and never shrinks, and the tensors beside it.
 *
 * The memory of the runtime is caught where it is made, so this module is imported before the runtime loads.
 */

const made: WebAssembly.Memory[] = [];

/** From now on every WebAssembly memory made here is counted. Once in a worker's life, before the runtime loads. */
export function countMemories(): void {
  const Original = WebAssembly.Memory;
  WebAssembly.Memory = class extends Original {
    constructor(descriptor: WebAssembly.MemoryDescriptor) {
      super(descriptor);
      made.push(this);
    }
  };
}

/** Bytes of all memories counted; 0 when {@link countMemories} came too late. */
export function runtimeBytes(): number {
  return made.reduce((sum, memory) => sum + memory.buffer.byteLength, 0);
}

/** The runtime's memory. */
export function runtimeMemory(): WebAssembly.Memory {
  const memory = made.at(-1);
  if (memory === undefined) throw new Error("the runtime was loaded before its memory was counted");
  return memory;
}

/** Peak of the runtime's memory and of the tensors held beside it. */
export class MemoryMeter {
  #held = 0;
  #peak = 0;

  /** Notes that `bytes` more of tensors are held from now on; fewer where negative. */
  hold(bytes: number): void {
    this.#held += bytes;
    this.note();
  }

  /** Notes what is held now, `more` bytes of tensors among it that go before the next note. */
  note(more = 0): void {
    this.#peak = Math.max(this.#peak, runtimeBytes() + this.#held + more);
  }

  get peakBytes(): number {
    return this.#peak;
  }
}
