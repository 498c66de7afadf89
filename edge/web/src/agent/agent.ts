/**
 * The supervisor of a device: connect, hello, order, fetch, train, upload, report, ack. Reads in that order.
 *
 * One loop takes events from one queue; transport, trainer, conditions and clock put them there. It knows no method and
 * no runtime. Everything it is told twice it does once.
 */

import { type Envelope, type Sign, unseal } from "../contracts/envelope";
import { ApportionError, DataError, MessageRejected, ReplayedOrder, SignatureRejected } from "../contracts/errors";
import { Ack, type AgentState, Block, ErrorMessage, Grant, type Refuse } from "../contracts/messages";
import type { WorkOrder } from "../contracts/plan";
import type { TrainReport } from "../contracts/report";
import type { DataSource } from "../data/dataSource";
import type { BlobStore } from "../store/blobStore";
import type { Records } from "../store/records";
import type { Progress, Trained, Trainer } from "../trainer/trainer";
import { BlockRejected } from "../transport/blocks";
import { RangeRequests } from "../transport/rangeRequests";
import type { Transport, TransportEvent } from "../transport/transport";
import { Assignment, deadlineOf } from "./assignment";
import { type Clock, SYSTEM_CLOCK } from "./clock";
import { ALWAYS, type Conditions } from "./conditions";
import { Crashes } from "./crashes";
import { EventQueue } from "./eventQueue";
import type { FetcherParts, Piece } from "./fetcher";
import { FinishedWork } from "./finishedWork";
import { Gate } from "./gate";
import { OrderFetch } from "./orderFetch";
import { Outbox } from "./outbox";
import { heartbeat, Presence } from "./presence";
import { measuredOf, type ProfileSource } from "./profileSource";
import { type AgentSettings, readOrder } from "./settings";
import { SettledWork } from "./settledWork";
import { StateMachine } from "./states";
import { StatusBoard } from "./status";
import { Uploader } from "./uploader";

const TICK_S = 0.25;
/** A runtime that could not be loaded, or data that could not be counted, are tried again so often. */
const DESCRIBE_S = 10;

export interface AgentParts {
  readonly transport: Transport;
  readonly store: BlobStore;
  readonly records: Records;
  readonly trainer: Trainer;
  readonly data: DataSource;
  readonly profile: ProfileSource;
  readonly conditions?: Conditions | undefined;
  /** Signs what this device sends. */
  readonly sign?: Sign | undefined;
  readonly clock?: Clock | undefined;
  readonly fetch?: typeof fetch | undefined;
}

type AgentEvent =
  | TransportEvent
  | { readonly type: "piece"; readonly work: Assignment; readonly piece: Piece }
  | { readonly type: "progress"; readonly work: Assignment; readonly progress: Progress }
  | { readonly type: "trained"; readonly work: Assignment; readonly trained: Trained }
  | { readonly type: "failed"; readonly work: Assignment; readonly error: unknown }
  | { readonly type: "data" | "conditions" | "tick" }
  | { readonly type: "stop" };

/** One device. `run` resolves when it was stopped or denied. */
export class Agent {
  readonly status = new StatusBoard();
  readonly #clock: Clock;
  readonly #events = new EventQueue<AgentEvent>();
  readonly #outbox: Outbox;
  readonly #presence: Presence;
  readonly #finished: FinishedWork;
  readonly #settled: SettledWork;
  readonly #gate: Gate;
  readonly #crashes: Crashes;
  readonly #machine = new StateMachine();
  #work: Assignment | null = null;
  #isPaused = false;
  #isTickDue = false;
  #heartbeatAt = 0;
  #describeAt = 0;

  constructor(
    private readonly settings: AgentSettings,
    private readonly parts: AgentParts,
  ) {
    const { transport, store, records, trainer, data, profile, sign } = parts;
    this.#clock = parts.clock ?? SYSTEM_CLOCK;
    this.#outbox = new Outbox(transport, this.status, settings.federation, settings.device, sign);
    this.#presence = new Presence(settings, profile, trainer, data);
    this.#finished = new FinishedWork(records, store);
    this.#settled = new SettledWork(records);
    this.#gate = new Gate(parts.conditions ?? ALWAYS);
    this.#crashes = new Crashes(settings, records);
  }

  get state(): AgentState {
    return this.#machine.state;
  }

  /** Asks for the end; returns at once. */
  stop(): void {
    this.#events.put({ type: "stop" });
  }

  /** The local data are other ones now. */
  dataChanged(): void {
    this.#events.put({ type: "data" });
  }

  // connect

  async run(): Promise<void> {
    const { transport, trainer, conditions } = this.parts;
    await this.#restore();
    transport.start((event) => this.#events.put(event));
    const unsubscribe = conditions?.subscribe(() => this.#events.put({ type: "conditions" }));
    const stopTicking = this.#clock.every(TICK_S, () => {
      if (!this.#isTickDue) this.#events.put({ type: "tick" });
      this.#isTickDue = true;
    });
    await this.#describe();
    while (this.state !== "stopping") {
      const event = await this.#events.take();
      try {
        await this.#take(event);
      } catch (error) {
        await this.#surprised(error);
      }
      this.#show();
    }
    stopTicking();
    unsubscribe?.();
    this.#work?.fetch?.close();
    trainer.kill();
    await this.#crashes.over();
    await this.#outbox.flushed();
    await transport.stop();
    this.status.set({ state: "stopped" });
  }

  async #restore(): Promise<void> {
    await this.#crashes.restore();
    const found = await this.#finished.load();
    if (found === null) return;
    const { order, report } = found.record;
    this.#work = await Assignment.taken(order, this.#clock.now());
    await this.#remember(order); // so that it is known as settled once it is acknowledged
    this.#upload(this.#work, report, found.update);
    this.#machine.move("restored");
    this.#show();
  }

  async #take(event: AgentEvent): Promise<void> {
    switch (event.type) {
      case "connected":
        this.#outbox.isConnected = true;
        this.status.set({ connection: "connected" });
        return this.#hello();
      case "disconnected":
        this.#outbox.isConnected = false;
        return this.status.set({ connection: "offline" });
      case "denied":
        this.#outbox.isConnected = false;
        this.status.set({ connection: "denied" });
        this.status.failed("access-denied", event.reason);
        this.#machine.move("stop");
        return;
      case "received":
        return this.#received(event.payload);
      case "piece":
        return this.#piece(event.work, event.piece);
      case "progress":
        return this.#progressed(event.work, event.progress);
      case "trained":
        return this.#trained(event.work, event.trained);
      case "failed":
        return this.#trainingFailed(event.work, event.error);
      case "data":
        return this.#describe();
      case "conditions":
        this.#gate.changed();
        return this.#tick();
      case "tick":
        this.#isTickDue = false;
        return this.#tick();
      case "stop":
        this.#machine.move("stop");
    }
  }

  // hello

  async #describe(): Promise<void> {
    this.#describeAt = this.#clock.now() + DESCRIBE_S;
    try {
      if (await this.#presence.describe()) await this.#hello();
    } catch (error) {
      this.#tell(error);
    }
  }

  async #hello(): Promise<void> {
    if (!this.#presence.isKnown) return; // said as soon as the runtime is loaded
    this.#outbox.send("hello", await this.#presence.hello(this.state, this.#work));
    this.#work?.reconnected(this.#clock.now());
  }

  async #received(payload: Uint8Array): Promise<void> {
    let envelope: Envelope | null = null;
    try {
      envelope = unseal(payload);
      this.status.passed(false, envelope.kind, payload.length);
      await this.#dispatch(envelope);
    } catch (error) {
      if (!(error instanceof MessageRejected)) throw error;
      this.#tell(error);
      this.#complain(error, envelope?.id ?? "");
    }
  }

  async #dispatch(envelope: Envelope): Promise<void> {
    switch (envelope.kind) {
      case "order":
        return this.#ordered(await readOrder(this.settings, envelope));
      case "block":
        return this.#block(envelope.read(Block));
      case "grant":
        return this.#work?.uploader?.granted(envelope.read(Grant), this.#clock.now());
      case "ack":
        return this.#acknowledged(envelope.read(Ack));
      case "error":
        return this.#toldOfError(envelope.read(ErrorMessage));
      case "hello":
        return this.#hello(); // a coordinator that has just started asks who is there
    }
  }

  /** An order that is not trusted is refused, but never one under the assignment in hand: it could end the real one. */
  #complain(error: MessageRejected, about: string): void {
    const named = error instanceof SignatureRejected ? error.assignmentId : "";
    if (named !== "" && named !== this.#work?.order.assignment_id) {
      const bytes = { needed_bytes: 0, budget_bytes: 0, peak_bytes: 0 };
      this.#outbox.send("refuse", { assignment_id: named, code: error.code, reason: error.message, ...bytes });
    } else {
      this.#outbox.send("error", { code: error.code, message: error.message, about });
    }
  }

  // order

  async #ordered(order: WorkOrder): Promise<void> {
    const work = this.#work;
    const taken = await Assignment.taken(order, this.#clock.now());
    const replay = await this.#remember(order);
    const { assignment_id } = order;
    if (work !== null && work.identity === taken.identity) {
      work.deadlineAt = deadlineOf(order, this.#clock.now());
      this.#outbox.send("accept", { assignment_id });
      work.uploader?.again(this.#clock.now());
      return;
    }
    const refusal = replay === null ? await this.#refusal(taken) : taken.refusal(replay.code, replay.message);
    if (refusal !== null) {
      this.#outbox.send("refuse", refusal);
      this.status.failed(refusal.code, refusal.reason);
      return;
    }
    if (work !== null) await this.#drop(work);
    this.#work = taken;
    this.#machine.move("order");
    this.status.set({ step: 0, totalSteps: 0, loss: null, lossHistory: [], stepMs: null });
    this.#outbox.send("accept", { assignment_id });
    await this.#fetch(taken);
  }

  async #remember(order: WorkOrder): Promise<ReplayedOrder | null> {
    try {
      await this.#settled.check(order);
      return null;
    } catch (error) {
      if (error instanceof ReplayedOrder) return error;
      throw error;
    }
  }

  async #refusal(taken: Assignment): Promise<Refuse | null> {
    if (this.#presence.dataError !== "") await this.#describe(); // the owner may have mended it since
    const { dataError } = this.#presence;
    return (
      this.#crashes.known(taken) ??
      taken.unsupported() ??
      (dataError === "" ? null : taken.refusal(new DataError("").code, dataError)) ??
      taken.overBudget(this.settings)
    );
  }

  // fetch

  async #fetch(work: Assignment): Promise<void> {
    const { store, fetch, profile } = this.parts;
    const { bulk } = work.order;
    await this.#givingUpOnFailure(work, async () => {
      const ranges = bulk !== "" && this.settings.bulk ? new RangeRequests(bulk, fetch) : null;
      const parts: FetcherParts = {
        store,
        ranges,
        ask: (get) => this.#outbox.send("get", get, 0),
        deliver: (piece) => this.#events.put({ type: "piece", work, piece }),
        now: () => this.#clock.now(),
        measured: (bytes, seconds, method) => {
          profile.linkMeasured?.({ bytes, seconds, method }).catch((error) => this.#tell(error));
        },
      };
      work.fetch = new OrderFetch(work.order, parts, this.settings.trust);
      await work.fetch.start();
      await this.#goOn(work);
    });
  }

  async #block(block: Block): Promise<void> {
    const work = this.#work;
    if (work?.fetch == null || this.state !== "fetching") return;
    await this.#givingUpOnFailure(work, async () => {
      await work.fetch?.block(block);
      await this.#goOn(work);
    });
  }

  async #piece(work: Assignment, piece: Piece): Promise<void> {
    if (work !== this.#work || this.state !== "fetching") return;
    if ("data" in piece) this.status.passed(false, "https", piece.data.length);
    await this.#givingUpOnFailure(work, async () => {
      await work.fetch?.piece(piece);
      await this.#goOn(work);
    });
  }

  async #goOn(work: Assignment): Promise<void> {
    const { manifest } = work;
    if (manifest === null) return;
    work.estimate(manifest, await this.#presence.profile(), this.#presence.runtime?.idleBytes ?? 0);
    const refusal = work.overBudget(this.settings);
    if (refusal !== null) return this.#giveUp(work, refusal);
    this.#machine.move("fetched");
    await this.#begin(work);
  }

  // train

  async #begin(work: Assignment): Promise<void> {
    if (!this.#gate.lets(work, this.#isPaused)) return;
    this.#machine.move("begin");
    if (this.#isPaused) this.parts.trainer.resume();
    else await this.#train(work);
    this.#isPaused = false;
  }

  async #train(work: Assignment): Promise<void> {
    await this.#crashes.begins(work);
    const onProgress = (progress: Progress) => this.#events.put({ type: "progress", work, progress });
    this.parts.trainer.train(work.trainRequest(this.settings), onProgress).then(
      (trained) => this.#events.put({ type: "trained", work, trained }),
      (error: unknown) => this.#events.put({ type: "failed", work, error }),
    );
  }

  #progressed(work: Assignment, progress: Progress): void {
    if (work !== this.#work) return; // of an assignment that is over
    work.progress = progress;
    this.status.progress(progress.step, progress.totalSteps, progress.loss);
  }

  async #trainingFailed(work: Assignment, error: unknown): Promise<void> {
    if (work !== this.#work) return;
    const refusal = this.#crashes.after(work, error);
    if (refusal !== null) return this.#giveUp(work, refusal);
    if (this.state === "training") return this.#train(work);
    this.#isPaused = false; // it begins anew when the conditions allow
  }

  // upload

  async #trained(work: Assignment, trained: Trained): Promise<void> {
    if (work !== this.#work) return;
    this.#isPaused = false;
    await this.#crashes.over();
    const { order, manifest } = work;
    const report = await work.report(this.settings, trained, await this.#presence.profile(), this.#clock.now());
    this.status.set({ stepMs: trained.stepMsP50, peakBytes: trained.peakBytes });
    // A device without room for the update sends it all the same: it is lost with the tab, no more.
    await this.#finished.save({ order, report }, trained.update).catch((error) => this.#tell(error));
    this.#machine.move("trained");
    this.#upload(work, report, trained.update);
    if (manifest !== null) {
      const measured = measuredOf(order, manifest, trained);
      await this.parts.profile.measured(measured).catch((error) => this.#tell(error));
    }
  }

  #upload(work: Assignment, report: TrainReport, update: Uint8Array): void {
    work.uploader = new Uploader(report, update, this.#outbox.send, this.#clock.now());
    if (this.#outbox.isConnected) work.uploader.tick(this.#clock.now());
  }

  // report and ack

  async #acknowledged(ack: Ack): Promise<void> {
    const work = this.#work;
    await this.#settled.settle(ack.assignment_id);
    if (work === null || ack.assignment_id !== work.order.assignment_id) return;
    if (!ack.accepted) this.status.failed(ack.code || "update-rejected", ack.reason);
    if (this.state !== "uploading") return this.#drop(work); // settled without this report
    await this.#finished.forget(ack.assignment_id);
    this.#work = null;
    this.#machine.move("acked");
    if (ack.accepted) this.status.set({ roundsDone: this.status.current.roundsDone + 1 });
    this.#outbox.send("profile", await this.#presence.profile());
  }

  async #toldOfError(error: ErrorMessage): Promise<void> {
    this.status.failed(error.code, error.message);
    const work = this.#work;
    if (work?.fetch?.isFetching(error.about)) await this.#giveUp(work, work.refusal(error.code, error.message));
  }

  // what time brings

  async #tick(): Promise<void> {
    const now = this.#clock.now();
    if (!this.#presence.isKnown) {
      if (now >= this.#describeAt) await this.#describe();
      return;
    }
    const work = this.#work;
    if (work !== null) await this.#tickWork(work, now);
    if (this.#gate.takeNews() || now >= this.#heartbeatAt) {
      this.#heartbeatAt = now + this.settings.heartbeatS;
      this.#outbox.send("heartbeat", heartbeat(this.state, this.#work));
    }
  }

  async #tickWork(work: Assignment, now: number): Promise<void> {
    if (work.isExpired(now)) return this.#giveUp(work, work.expiry(this.state));
    if (this.#outbox.isConnected) work.tick(this.state, now);
    if (work.manifest === null || !this.#gate.isDue(now)) return;
    if (this.state === "waiting") await this.#begin(work);
    else if (this.state === "training" && !this.#gate.lets(work, true)) {
      this.parts.trainer.pause();
      this.#isPaused = true;
      this.#machine.move("paused");
    }
  }

  /** A failure ends `work` with its reason; a bad message leaves it as it is. */
  async #givingUpOnFailure(work: Assignment, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (error instanceof BlockRejected || !(error instanceof ApportionError)) throw error;
      await this.#giveUp(work, work.refusal(error.code, error.message));
    }
  }

  async #giveUp(work: Assignment, refusal: Refuse): Promise<void> {
    await this.#drop(work);
    this.#outbox.send("refuse", refusal);
    this.status.failed(refusal.code, refusal.reason);
  }

  async #drop(work: Assignment): Promise<void> {
    this.#work = null;
    work.fetch?.close();
    if (this.state === "training" || this.#isPaused) this.parts.trainer.kill();
    this.#isPaused = false;
    this.#machine.move("dropped");
    await this.#crashes.over();
    await this.#finished.forget(work.order.assignment_id);
  }

  /** An error that nobody expected ends the work in hand, not the agent. */
  async #surprised(error: unknown): Promise<void> {
    const work = this.#work;
    const reason = error instanceof Error ? error.message : String(error);
    if (work !== null && !(error instanceof MessageRejected)) await this.#giveUp(work, work.refusal("error", reason));
    this.#tell(error);
  }

  #tell(error: unknown): void {
    if (error instanceof ApportionError) this.status.failed(error.code, error.message, error.hint);
    else this.status.failed("error", error instanceof Error ? error.message : String(error));
  }

  #show(): void {
    const work = this.#work;
    const isWaiting = this.state === "waiting";
    const { fetched, total } = (this.state === "fetching" ? work?.fetch?.progress : null) ?? { fetched: 0, total: 0 };
    this.status.set({
      state: this.state,
      waitingFor: isWaiting ? (work?.waitingFor ?? "") : "",
      reason: isWaiting ? (work?.waiting ?? "") : "",
      assignmentId: work?.order.assignment_id ?? "",
      round: work?.order.round ?? this.status.current.round,
      fetchedBytes: fetched,
      totalBytes: total,
    });
  }
}
