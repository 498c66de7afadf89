/**
 * What an artifact is: programs, tensors, cost, self-test, and the digest of every file. Graphs carry no weights.
 *
 * The manifest's digest (SHA-256 of its exact bytes) is the artifact's digest. A signature is detached, over those.
 */

import { decodeJson } from "./codec";
import { MessageRejected, PlanError } from "./errors";
import {
  anything,
  defaulted,
  dict,
  float,
  integer,
  integerWithin,
  list,
  oneOf,
  optional,
  type Struct,
  struct,
  text,
} from "./shapes";
import { BATCH, TensorSpec } from "./tensors";

export const MANIFEST_SCHEMA = "apportion.manifest/1";
export const MAX_MANIFEST_BYTES = 8 * 1024 * 1024;

const FILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;
const DIGEST = /^[0-9a-f]{64}$/;

/** One file of an artifact: a plain name (no folder), its SHA-256 and its size in bytes. */
export interface ArtifactFile {
  readonly name: string;
  readonly sha256: string;
  readonly size: number;
}
export const ArtifactFile: Struct<ArtifactFile> = struct<ArtifactFile>("ArtifactFile", {
  name: text,
  sha256: text,
  size: integer,
});

/** A program output: the value's name in the graph, and the manifest tensor it is the new value of. */
export interface GraphOutput {
  readonly name: string;
  readonly tensor: string;
}
export const GraphOutput: Struct<GraphOutput> = struct<GraphOutput>("GraphOutput", { name: text, tensor: text });

/** One graph file with declared inputs and outputs. */
export interface Program {
  /** `train`, `accumulate`, `train_<variant>`, `eval`, `stats` or `prefix`. */
  readonly name: string;
  readonly file: string;
  /** Tensor names; the graph's input has the same name. */
  readonly inputs: readonly string[];
  /** What the graph gives, in graph order. */
  readonly outputs: readonly GraphOutput[];
  /** The only number of examples to run it on; null when any will do. */
  readonly batch: number | null;
}
export const Program: Struct<Program> = struct<Program>("Program", {
  name: text,
  file: text,
  inputs: list(text),
  outputs: list(GraphOutput),
  batch: defaulted(optional(integer), null),
});

/** Multiply-accumulates of one whole step of a batch, by kind of kernel. */
export interface StepWork {
  readonly convolution_macs: number;
  readonly padded_macs: number;
  readonly matrix_macs: number;
}
const count = integerWithin(0, Number.MAX_SAFE_INTEGER);
export const StepWork: Struct<StepWork> = struct<StepWork>("StepWork", {
  convolution_macs: count,
  padded_macs: count,
  matrix_macs: count,
});

/** What the cut costs, computed from the exported graph. */
export interface Cost {
  readonly parameters: number;
  readonly trained_parameters: number;
  readonly macs: number;
  readonly state_bytes: number;
  readonly live_bytes: number;
  /** Of the trainer above itself when idle with the runtime loaded. */
  readonly predicted_peak_bytes: number;
  readonly batch: number;
  readonly predicted_step_ms: number;
  readonly graph_bytes: number;
  readonly step_work: StepWork | null;
}
export const Cost: Struct<Cost> = struct<Cost>("Cost", {
  parameters: integer,
  trained_parameters: integer,
  macs: integer,
  state_bytes: integer,
  live_bytes: integer,
  predicted_peak_bytes: integer,
  batch: integer,
  predicted_step_ms: defaulted(float, 0),
  graph_bytes: defaulted(integer, 0),
  step_work: defaulted(optional(StepWork), null),
});

/** A run a device can repeat: formula weights, a fixed batch, the losses of the first steps. */
export interface SelfTest {
  readonly formula: "splitmix64-uniform/1" | "splitmix64-uniform/2";
  readonly seed: number;
  readonly batch: number;
  readonly hyper: Readonly<Record<string, number>>;
  readonly losses: readonly number[];
  readonly rel_tolerance: number;
  readonly bias: number;
  readonly gain: number;
}
export const SelfTest: Struct<SelfTest> = struct<SelfTest>("SelfTest", {
  formula: oneOf("splitmix64-uniform/1", "splitmix64-uniform/2"),
  seed: integer,
  batch: integer,
  hyper: dict(float),
  losses: list(float),
  rel_tolerance: float,
  bias: defaulted(float, 0),
  gain: defaulted(float, 1),
});

/** What the parity gate measured at export, and against what. */
export interface Parity {
  readonly max_grad_rel_err: number;
  readonly torch_fp32_rel_err: number;
  readonly loss_rel_err: number;
  readonly tolerance: number;
  readonly steps: number;
}
export const Parity: Struct<Parity> = struct<Parity>("Parity", {
  max_grad_rel_err: float,
  torch_fp32_rel_err: float,
  loss_rel_err: float,
  tolerance: float,
  steps: integer,
});

/** How local data becomes the program's input: `(x * scale - mean) / std`, after augmentation. */
export interface InputSpec {
  /** `features` [F], `chw` images, or `tokens` [T]. */
  readonly layout: "features" | "chw" | "tokens";
  /** Per example, without the batch dimension. */
  readonly shape: readonly number[];
  readonly dtype: "float32" | "int64";
  /** Per channel, or one value. */
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly scale: number;
  /** Named, seeded augmentations applied while training (`flip`, `crop4`, `crop` with other pixels). */
  readonly augment: readonly string[];
  /** Number of symbols for `tokens`; 0 otherwise. */
  readonly vocabulary: number;
}
export const InputSpec: Struct<InputSpec> = struct<InputSpec>("InputSpec", {
  layout: oneOf("features", "chw", "tokens"),
  shape: list(integer),
  dtype: defaulted(oneOf("float32", "int64"), "float32"),
  mean: defaulted(list(float), [0]),
  std: defaulted(list(float), [1]),
  scale: defaulted(float, 1),
  augment: defaulted(list(text), []),
  vocabulary: defaulted(integer, 0),
});

/** Everything a device must know to train one cut. */
export interface ArtifactManifest {
  readonly format: string;
  readonly runtime: string;
  readonly minimum_runtime_version: string;
  readonly programs: readonly Program[];
  readonly tensors: readonly TensorSpec[];
  readonly files: readonly ArtifactFile[];
  /** Examples of one step. */
  readonly batch: number;
  readonly loss: string;
  readonly optimizer: string;
  readonly norm: "running" | "batch";
  readonly input: InputSpec;
  readonly classes: readonly string[];
  readonly cost: Cost;
  readonly self_test: SelfTest;
  readonly parity: Parity;
  /** How the coordinator rebuilds the module; opaque to devices. */
  readonly build: Readonly<Record<string, unknown>>;
  readonly export_key: string;
  /** Parts of a batch that a step runs one after the other. */
  readonly micro_batches: number;
  readonly schema: string;
}
export const ArtifactManifest: Struct<ArtifactManifest> = struct<ArtifactManifest>("ArtifactManifest", {
  format: text,
  runtime: text,
  minimum_runtime_version: text,
  programs: list(Program),
  tensors: list(TensorSpec),
  files: list(ArtifactFile),
  batch: integer,
  loss: text,
  optimizer: text,
  norm: oneOf("running", "batch"),
  input: InputSpec,
  classes: list(text),
  cost: Cost,
  self_test: SelfTest,
  parity: Parity,
  build: dict(anything),
  export_key: text,
  micro_batches: defaulted(integer, 1),
  schema: defaulted(text, MANIFEST_SCHEMA),
});

/**
 * The manifest in `data`, checked: known schema, safe file names, programs and tensors that exist.
 * UnsupportedVersion: another schema. MessageRejected: too large, malformed, an unsafe or dangling name.
 */
export function parseManifest(data: Uint8Array): ArtifactManifest {
  const manifest = decodeJson(data, ArtifactManifest, MAX_MANIFEST_BYTES, MANIFEST_SCHEMA);
  checkFiles(manifest);
  checkPrograms(manifest, checkTensorNames(manifest));
  return manifest;
}

/** The program called `name`; PlanError lists those there are. */
export function programOf(manifest: ArtifactManifest, name: string): Program {
  const found = manifest.programs.find((program) => program.name === name);
  if (found !== undefined) return found;
  const known = manifest.programs.map((program) => program.name).join(", ");
  throw new PlanError(`artifact has no program '${name}', it has ${known}; export it with that program`);
}

/** The spec of tensor `name`; PlanError when there is none. */
export function tensorOf(manifest: ArtifactManifest, name: string): TensorSpec {
  const found = manifest.tensors.find((spec) => spec.name === name);
  if (found !== undefined) return found;
  throw new PlanError(
    `artifact has no tensor '${name}' among its ${manifest.tensors.length}; the plan is for another cut`,
  );
}

/** `digest` itself when it is 64 lower-case hex digits; it names blobs, so nothing else may pass. */
export function checkDigest(digest: string, where: string): string {
  if (!DIGEST.test(digest)) {
    throw new MessageRejected(`${where}: digest '${digest.slice(0, 80)}' is not 64 lower-case hex digits`);
  }
  return digest;
}

function checkFiles(manifest: ArtifactManifest): void {
  const names = new Set<string>();
  for (const file of manifest.files) {
    if (!FILE_NAME.test(file.name) || file.name.includes("..")) {
      throw new MessageRejected(
        `manifest: file name '${file.name.slice(0, 80)}' is not a plain name; refuse the artifact`,
      );
    }
    checkDigest(file.sha256, `manifest: file ${file.name}`);
    if (names.has(file.name) || file.size < 0) {
      throw new MessageRejected(`manifest: file ${file.name} appears twice or has size ${file.size}`);
    }
    names.add(file.name);
  }
}

function checkTensorNames(manifest: ArtifactManifest): ReadonlySet<string> {
  const names = new Set(manifest.tensors.map((spec) => spec.name));
  if (names.size !== manifest.tensors.length) throw new MessageRejected("manifest: a tensor name appears twice");
  for (const spec of manifest.tensors) {
    if (spec.shape.some((size) => size !== BATCH && !(size >= 0 && size <= 2 ** 40))) {
      throw new MessageRejected(`manifest: tensor '${spec.name}' has shape [${spec.shape}]; sizes must be counts`);
    }
  }
  return names;
}

function checkPrograms(manifest: ArtifactManifest, tensors: ReadonlySet<string>): void {
  const files = new Set(manifest.files.map((file) => file.name));
  for (const program of manifest.programs) {
    const named = [...program.inputs, ...program.outputs.map((output) => output.tensor)];
    const dangling = named.filter((name) => !tensors.has(name));
    if (!files.has(program.file) || dangling.length > 0) {
      throw new MessageRejected(
        `manifest: program '${program.name}' names file '${program.file}' and tensors [${dangling.slice(0, 3)}] ` +
          "that are not in the manifest",
      );
    }
  }
}
