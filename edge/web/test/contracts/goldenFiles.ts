/** The checked-in bytes of every contract, which the Python side writes: tests/contracts/golden. */

import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));
const FOLDER = `${ROOT}tests/contracts/golden/`;

/** The golden files of `name` (`hello.msgpack`), oldest first. */
export function versions(name: string): Uint8Array[] {
  const [stem, suffix] = name.split(".") as [string, string];
  const numbers = readdirSync(FOLDER)
    .map((file) => file.split("."))
    .filter(([head, , tail]) => head === stem && tail === suffix)
    .map(([, number]) => Number(number));
  if (numbers.length === 0) throw new Error(`no golden file ${name}`);
  return numbers.sort((a, b) => a - b).map((number) => bytesOf(`${stem}.${number}.${suffix}`));
}

export function newest(name: string): Uint8Array {
  return versions(name).at(-1) as Uint8Array;
}

/** The golden vectors of the protocol's page. */
export function vectors(): Vectors {
  const page = readFileSync(`${ROOT}docs/wire-protocol.md`, "utf8");
  const block = /```json vectors\n([\s\S]*?)```/.exec(page)?.[1];
  if (block === undefined) throw new Error("docs/wire-protocol.md has no block of vectors");
  return JSON.parse(block) as Vectors;
}

export interface Vectors {
  stream_seed: [number, string, number, string, string][];
  splitmix64: [string, string[]][];
  uniform: [string, number[]][];
  permutation: [string, number, number[]][];
  assignment_id: [string, number, string, number, string, string][];
  signatures: {
    public_key: string;
    manifest: { hex: string; signature: string };
    order: { hex: string; signature: string };
  };
  browser_signatures: {
    public_key: string;
    message: {
      federation: string;
      device: string;
      kind: string;
      id: string;
      body: string;
      text: string;
      signature: string;
    };
    claim: { token: string; text: string; proof: string };
  };
  self_test: {
    seed: number;
    batch: number;
    high: number;
    tensors: {
      name: string;
      shape: (number | "batch")[];
      dtype: string;
      role: string;
      bias?: number;
      gain?: number;
      probability?: number;
      value: number[];
    }[];
  };
  draws: {
    name: string;
    shape: (number | "batch")[];
    dtype: string;
    probability: number;
    seed: string;
    step: number;
    batch: number;
    value: number[];
  }[];
}

export function fromHex(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

function bytesOf(file: string): Uint8Array {
  // A plain array: a Buffer compares unequal to it.
  return new Uint8Array(readFileSync(FOLDER + file));
}
