/**
 * An order as steps of a session: which program, which batch, which scalars; and what the steps amounted to.
 *
 * Generic by construction: inputs are fed by their role, everything a method wanted is inside the graph.
 */

import { DeviceRefused } from "../contracts/errors";
import { type ArtifactManifest, tensorOf } from "../contracts/manifest";
import { KEPT, keptValues, MASK } from "../contracts/packing";
import type { WorkOrder } from "../contracts/plan";
import { compareText } from "../contracts/shapes";
import { drawnValue } from "../contracts/streams";
import { concreteShape, emptyData, type Tensor, type TensorSpec } from "../contracts/tensors";
import { type Batch, BatchOrder, type Examples } from "../data/batches";
import { runStep, stepPrograms } from "./microBatches";
import type { Session, Tensors } from "./session";

/** The hyper input that makes a running mean of the steps so far: 1 / (step + 1). */
const STATS_MOMENTUM = "stats_momentum";
/** Of so many the median is told meanwhile: the first ones, which warm up, are soon forgotten. */
const LATEST_STEPS = 32;
const METRIC_NAMES: ReadonlyMap<string, string> = new Map([["correct", "accuracy"]]);

/** What the steps of one order amounted to; losses and metrics are means. */
export interface Outcome {
  readonly steps: number;
  readonly loss: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly stepMsP50: number;
  readonly stepMsP95: number;
}

export interface TrainingHooks {
  /** Called after every step; `stepMs` is the median of the latest ones. */
  readonly onStep: (step: number, total: number, loss: number, stepMs: number) => void;
  /** Awaited before every step; its time is no step's. */
  readonly between: () => Promise<void>;
}

/**
 * Runs `order` on a session whose state is already loaded.
 *
 * @throws DeviceRefused for an order this artifact cannot carry out, or a step the runtime could not execute
 */
export async function train(
  session: Session,
  manifest: ArtifactManifest,
  order: WorkOrder,
  examples: Examples,
  hooks: TrainingHooks,
): Promise<Outcome> {
  const plan = new BatchOrder(examples.length, order.batch, order.last_batch, order.data_seed);
  const turns = order.schedule.turns;
  const count = plan.total(order.schedule);
  const advances = turns.map((turn) => turn.advance_batch);
  const total = stepsOf(count, advances);
  const feeders = new Map(turns.map((turn) => [turn.program, new Feeder(manifest, turn.program, order, examples)]));
  const means = new Means(manifest);
  const stepMs: number[] = [];
  let step = 0;
  let number = 0;
  for (const indices of plan.batches(count)) {
    await hooks.between();
    let started = performance.now();
    const batch = examples.batch(indices, plan.augmentSeed(number));
    number += 1;
    for (let isAdvanced = false; !isAdvanced; ) {
      const turn = turns[step % turns.length] as (typeof turns)[number];
      const feeds = (feeders.get(turn.program) as Feeder).feeds(batch, step);
      const values = await runStep(session, manifest, turn.program, feeds);
      stepMs.push(performance.now() - started);
      step += 1;
      means.add(values, batch.y.length);
      hooks.onStep(step, total, values.get("loss") ?? Number.NaN, percentile(stepMs.slice(-LATEST_STEPS), 0.5));
      isAdvanced = turn.advance_batch;
      if (!isAdvanced) await hooks.between();
      started = performance.now();
    }
  }
  return {
    steps: step,
    loss: means.of("loss"),
    metrics: means.metrics(),
    stepMsP50: percentile(stepMs, 0.5),
    stepMsP95: percentile(stepMs, 0.95),
  };
}

/** What an update holds as `name`: a tensor's present value, or the kept entries of a masked one. */
export function uploaded(session: Session, name: string): Tensor {
  if (!name.endsWith(KEPT)) return session.read(name);
  const base = name.slice(0, -KEPT.length);
  return keptValues(session.read(base), session.read(base + MASK));
}

/** `value` in the shape ([] or [1]) and dtype of a `hyper` input. */
export function scalar(spec: TensorSpec, value: number): Tensor {
  const data = emptyData(spec.dtype, 1);
  data[0] = data instanceof BigInt64Array ? BigInt(value) : value;
  return { dtype: spec.dtype, shape: concreteShape(spec), data };
}

/** The nearest-rank percentile of `values`; 0 when there are none. */
export function percentile(values: readonly number[], share: number): number {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered[Math.max(0, Math.ceil(share * ordered.length) - 1)] ?? 0;
}

/** Every fed input of one program's steps, by role; checked once before the first step. */
class Feeder {
  readonly #name: string;
  readonly #batch: number | null;
  readonly #input: TensorSpec | undefined;
  readonly #target: TensorSpec | undefined;
  readonly #fixed = new Map<string, Tensor>();
  readonly #counted: TensorSpec[] = [];
  readonly #dataSeed: bigint;
  readonly #draws: readonly TensorSpec[];

  constructor(manifest: ArtifactManifest, program: string, order: WorkOrder, examples: Examples) {
    const programs = stepPrograms(manifest, program);
    const first = programs[0];
    this.#name = first?.name ?? program;
    this.#batch = first?.batch ? first.batch * (programs.length > 1 ? manifest.micro_batches : 1) : null;
    const names = new Set(programs.flatMap((described) => described.inputs));
    const specs = [...names].map((name) => tensorOf(manifest, name));
    const inputs = specs.filter((spec) => spec.role === "input");
    const targets = specs.filter((spec) => spec.role === "target");
    if (inputs.length > 1 || targets.length > 1) {
      throw new DeviceRefused(
        `program '${this.#name}' takes inputs [${inputs.map((spec) => spec.name)}] and targets ` +
          `[${targets.map((spec) => spec.name)}]; this agent feeds one of each`,
      );
    }
    [this.#input] = inputs;
    [this.#target] = targets;
    this.#dataSeed = order.data_seed;
    this.#draws = specs.filter((spec) => spec.role === "draw");
    for (const spec of this.#draws) {
      if (spec.dtype === "bool" || spec.dtype === "float32") continue;
      throw new DeviceRefused(
        `program '${this.#name}' takes draw '${spec.name}' of ${spec.dtype}, this agent draws bool and float32; ` +
          "update it",
      );
    }
    for (const spec of specs) {
      if (spec.role === "label_mask") {
        const data = examples.labelMask();
        this.#fixed.set(spec.name, { dtype: "float32", shape: [data.length], data });
      } else if (spec.role === "hyper" && spec.name === STATS_MOMENTUM) this.#counted.push(spec);
      else if (spec.role === "hyper") this.#fixed.set(spec.name, scalar(spec, this.#ordered(order, spec.name)));
    }
  }

  feeds(batch: Batch, step: number): Tensors {
    const examples = batch.xShape[0] ?? 0;
    if (this.#batch !== null && this.#batch !== examples) {
      throw new DeviceRefused(
        `program '${this.#name}' takes batches of ${this.#batch}, this one has ${examples}; ` +
          "order last-batch drop or wrap",
      );
    }
    const feeds = new Map(this.#fixed);
    if (this.#input) feeds.set(this.#input.name, { dtype: this.#input.dtype, shape: batch.xShape, data: batch.x });
    if (this.#target) feeds.set(this.#target.name, { dtype: this.#target.dtype, shape: batch.yShape, data: batch.y });
    for (const spec of this.#counted) feeds.set(spec.name, scalar(spec, 1 / (step + 1)));
    for (const spec of this.#draws) feeds.set(spec.name, drawnValue(spec, this.#dataSeed, step, examples));
    return feeds;
  }

  #ordered(order: WorkOrder, name: string): number {
    if (Object.hasOwn(order.hyper, name)) return order.hyper[name] as number;
    throw new DeviceRefused(
      `program '${this.#name}' needs hyper-parameter '${name}', the order gives ` +
        `[${Object.keys(order.hyper).sort(compareText).join(", ")}]; order it`,
    );
  }
}

/** Means over steps. An integer metric counts targets, so its mean is per target; others are per step. */
class Means {
  readonly #counts: ReadonlySet<string>;
  readonly #sums = new Map<string, number>();
  readonly #weights = new Map<string, number>();

  constructor(manifest: ArtifactManifest) {
    const metrics = manifest.tensors.filter((spec) => spec.role === "metric" && /^u?int/.test(spec.dtype));
    this.#counts = new Set(metrics.map((spec) => spec.name));
  }

  add(values: ReadonlyMap<string, number>, targets: number): void {
    for (const [name, value] of values) {
      this.#sums.set(name, (this.#sums.get(name) ?? 0) + value);
      this.#weights.set(name, (this.#weights.get(name) ?? 0) + (this.#counts.has(name) ? targets : 1));
    }
  }

  of(name: string): number {
    return (this.#sums.get(name) ?? 0) / (this.#weights.get(name) ?? 1);
  }

  metrics(): Record<string, number> {
    const names = [...this.#sums.keys()].filter((name) => name !== "loss").sort(compareText);
    return Object.fromEntries(names.map((name) => [METRIC_NAMES.get(name) ?? name, this.of(name)]));
  }
}

/** Turns taken until `batches` batches are used up. */
export function stepsOf(batches: number, advances: readonly boolean[]): number {
  const perCycle = advances.filter(Boolean).length;
  const steps = Math.floor(batches / perCycle) * advances.length;
  let rest = batches % perCycle;
  // The last cycle ends with its last advancing turn; what follows it would begin a batch that does not come.
  if (rest === 0) return steps - (advances.length - 1 - advances.lastIndexOf(true));
  for (const [index, isAdvance] of advances.entries()) {
    if (isAdvance) rest -= 1;
    if (rest === 0) return steps + index + 1;
  }
  return steps;
}
