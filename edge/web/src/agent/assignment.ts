/** The assignment in hand: its order, how far it is, and the messages that follow from it. */

import { DeadlineExpired, DeviceRefused, UnsupportedEncoding } from "../contracts/errors";
import type { ArtifactManifest } from "../contracts/manifest";
import type { AgentState, Refuse } from "../contracts/messages";
import type { WorkOrder } from "../contracts/plan";
import type { DeviceProfile } from "../contracts/profile";
import type { TrainReport } from "../contracts/report";
import { sha256Hex } from "../store/digest";
import type { Progress, Trained, TrainRequest } from "../trainer/trainer";
import { RangeRequests } from "../transport/rangeRequests";
import type { AgentParts } from "./agentEvents";
import type { Condition } from "./conditions";
import type { FetcherParts } from "./fetcher";
import { orderRefs } from "./finishedWork";
import { OrderFetch } from "./orderFetch";
import { orderIdentity } from "./orderIdentity";
import type { AgentSettings } from "./settings";
import type { Uploader } from "./uploader";

/** What an agent grows by while it moves blocks, reads a manifest and writes its report. Source: measured. */
const TRANSFER_BYTES = 4 << 20;

export class Assignment {
  /** On the monotonic clock; 0: none. */
  deadlineAt: number;
  /** What page and trainer are expected to reach; 0 until known. */
  neededBytes: number;
  /** What the device has for both; 0 until known. */
  ceilingBytes = 0;
  /** Trainers that died over it. */
  crashes = 0;
  progress: Progress | null = null;
  waitingFor: Condition | null = null;
  waiting = "";
  /** The most that the page was seen to hold while it was at this. */
  pagePeakBytes = 0;
  fetch: OrderFetch | null = null;
  uploader: Uploader | null = null;

  private constructor(
    readonly order: WorkOrder,
    /** Tells a repeated order from another one under the same assignment id. */
    readonly identity: string,
    readonly acceptedAt: number,
  ) {
    this.deadlineAt = deadlineOf(order, acceptedAt);
    this.neededBytes = order.peak_bytes;
  }

  /** `order`, its time running from `now`. */
  static async taken(order: WorkOrder, now: number): Promise<Assignment> {
    return new Assignment(order, await orderIdentity(order), now);
  }

  get manifest(): ArtifactManifest | null {
    return this.fetch?.completeManifest ?? null;
  }

  isExpired(now: number): boolean {
    return this.deadlineAt > 0 && now >= this.deadlineAt;
  }

  /**
   * Begins to bring everything the order needs into the store, over HTTPS where the order has an address; with `isHeld`
   * nothing is asked for before it is released.
   *
   * @throws ApportionError as `OrderFetch.start`.
   */
  async startFetch(
    settings: AgentSettings,
    { store, fetch, profile }: AgentParts,
    calls: Pick<FetcherParts, "ask" | "deliver" | "now">,
    isHeld: boolean,
  ): Promise<void> {
    const ranges = settings.bulk ? RangeRequests.at(this.order.bulk, fetch) : null;
    const measured: FetcherParts["measured"] = (bytes, seconds, method) => {
      profile.linkMeasured?.({ bytes, seconds, method }).catch(() => {}); // no reason to stop a fetch
    };
    this.fetch = new OrderFetch(this.order, { ...calls, store, ranges, measured }, settings.trust);
    if (isHeld) this.fetch.hold();
    await this.fetch.start();
  }

  /** Whatever was on its way when the connection broke is asked for or offered again. */
  reconnected(now: number): void {
    this.fetch?.reconnected(now);
    this.uploader?.reconnected(now);
  }

  /** Sends what is due of the transfer that belongs to `state`. */
  tick(state: AgentState, now: number): void {
    if (state === "fetching") this.fetch?.tick(now);
    else if (state === "uploading") this.uploader?.tick(now);
  }

  refusal(code: string, reason: string, bytes: { budget?: number; peak?: number } = {}): Refuse {
    return {
      assignment_id: this.order.assignment_id,
      code,
      reason,
      needed_bytes: this.neededBytes,
      budget_bytes: bytes.budget ?? 0,
      peak_bytes: bytes.peak ?? 0,
    };
  }

  expiry(state: AgentState): Refuse {
    return this.refusal(
      new DeadlineExpired("").code,
      `${this.#who}: still ${state} when its time was over; allow more`,
    );
  }

  crashRefusal(reason: string, settings: AgentSettings): Refuse {
    return this.refusal(
      "trainer-crashed",
      `${this.#who}: the trainer crashed ${this.crashes} times, last with ${reason}; plan a smaller cut or look at ` +
        "the device's page",
      { budget: settings.budgetBytes },
    );
  }

  /** The refusal of an order in an encoding that a browser cannot undo, else null. */
  unsupported(): Refuse | null {
    const encodings = [this.order.encoding, ...orderRefs(this.order).map((ref) => ref.encoding)];
    if (encodings.every((encoding) => encoding === "raw")) return null;
    const error = new UnsupportedEncoding(
      `${this.#who}: this agent takes and sends 'raw' alone, not 'zstd'; order raw`,
    );
    return this.refusal(error.code, error.message);
  }

  /** Predicts what page and trainer will reach, when the order did not say, and what they may. */
  estimate(manifest: ArtifactManifest, profile: DeviceProfile, trainerIdleBytes: number): void {
    const limits = [profile.budget_bytes, profile.memory_limit_bytes ?? 0, profile.ram_bytes].filter((n) => n > 0);
    this.ceilingBytes = limits.length === 0 ? 0 : Math.min(...limits);
    this.neededBytes ||=
      profile.supervisor_idle_bytes + TRANSFER_BYTES + trainerIdleBytes + manifest.cost.predicted_peak_bytes;
  }

  /** The refusal when more memory is needed than the owner allows or the device has, else null. */
  overBudget(settings: AgentSettings): Refuse | null {
    const limits = [settings.budgetBytes, this.ceilingBytes].filter((bytes) => bytes > 0);
    const budget = limits.length === 0 ? 0 : Math.min(...limits);
    if (budget === 0 || this.neededBytes <= budget) return null;
    const limit = budget === settings.budgetBytes ? "the budget is" : "the device's memory or its limit is";
    const reason = `${this.#who}: the order needs ${this.neededBytes} bytes, ${limit} ${budget}; plan a smaller cut`;
    return this.refusal(new DeviceRefused("").code, reason, { budget });
  }

  trainRequest(settings: AgentSettings): TrainRequest {
    const { order } = this;
    const threads = Math.min(order.threads, settings.threads || order.threads);
    return { order, store: settings.store, data: settings.data, threads, selfTest: settings.selfTest };
  }

  /** What the coordinator is told about a finished training. */
  async report(done: Trained, profile: DeviceProfile, now: number): Promise<TrainReport> {
    const supervisorPeak = Math.max(profile.supervisor_idle_bytes, this.pagePeakBytes);
    const size = done.update.length;
    return {
      assignment_id: this.order.assignment_id,
      device: this.order.device,
      round: this.order.round,
      num_examples: done.numExamples,
      steps: done.steps,
      loss: done.loss,
      metrics: done.metrics,
      step_ms_p50: done.stepMsP50,
      step_ms_p95: done.stepMsP95,
      trainer_peak_bytes: done.peakBytes,
      supervisor_peak_bytes: supervisorPeak,
      trainer_idle_bytes: done.idleBytes,
      budget_bytes: profile.budget_bytes,
      over_budget: profile.budget_bytes > 0 && supervisorPeak + done.peakBytes > profile.budget_bytes,
      torch_loaded: false,
      runtime: Object.keys(profile.runtimes)[0] ?? "",
      bytes_down: this.fetch?.bytesDown ?? 0,
      bytes_up: size,
      update: { digest: await sha256Hex(done.update), size, encoding: "raw", encoded_size: size },
      wall_s: now - this.acceptedAt,
      temperature_c: profile.temperature_c,
      battery_percent: profile.battery_percent,
      threads: done.threads,
      labels: this.order.report_labels ? done.labels : null,
      site_devices: 0,
    };
  }

  get #who(): string {
    return `device ${this.order.device}, round ${this.order.round}`;
  }
}

/** When the order's time is over on the monotonic clock; 0 when it has no end. */
export function deadlineOf(order: WorkOrder, now: number): number {
  return order.deadline_s > 0 ? now + order.deadline_s : 0;
}
