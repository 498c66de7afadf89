/**
 * The supervisor of a device: connect, hello, order, fetch, train, upload, report, ack. Reads in that order.
 *
 * One loop takes events from one queue; transport, trainer, conditions and clock put them there. It knows no method and
 * no runtime. Everything it is told twice it does once.
 */

import { type Envelope, unseal } from "../contracts/envelope";
import { MessageRejected } from "../contracts/errors";
import { Ack, type AgentState, Block, ErrorMessage, Grant, type Refuse } from "../contracts/messages";
import type { WorkOrder } from "../contracts/plan";
import { Admission } from "./admission";
import type { AgentEvent, AgentParts, TrainingEvent } from "./agentEvents";
import { Assignment, deadlineOf } from "./assignment";
import { type Clock, SYSTEM_CLOCK } from "./clock";
import { complain } from "./complaint";
import { Delivery } from "./delivery";
import { toldRefusal } from "./discretion";
import { EventQueue } from "./eventQueue";
import type { Piece } from "./fetcher";
import { Fetching } from "./fetching";
import { Outbox } from "./outbox";
import { Presence } from "./presence";
import { type AgentSettings, readOrder } from "./settings";
import { StateMachine } from "./states";
import { StatusBoard, shown } from "./status";
import { Training } from "./training";

const TICK_S = 0.25;
const TICK: AgentEvent = { type: "tick" };

/** One device. `run` resolves when it was stopped or denied. */
export class Agent {
  readonly status: StatusBoard;
  readonly #clock: Clock;
  readonly #events = new EventQueue<AgentEvent>((event) =>
    event.type === "received" ? event.payload.length : undefined,
  );
  readonly #outbox: Outbox;
  readonly #presence: Presence;
  readonly #fetching: Fetching;
  readonly #delivery: Delivery;
  readonly #admission: Admission;
  readonly #training: Training;
  readonly #machine = new StateMachine();
  #work: Assignment | null = null;

  constructor(
    private readonly settings: AgentSettings,
    private readonly parts: AgentParts,
  ) {
    const { transport, records, trainer, data, profile, sign } = parts;
    this.status = parts.status ?? new StatusBoard();
    this.#clock = parts.clock ?? SYSTEM_CLOCK;
    this.#outbox = new Outbox(transport, this.status, settings.federation, settings.device, sign);
    this.#presence = new Presence(settings, profile, trainer, data);
    this.#training = new Training(settings, parts, (event) => this.#events.put(event));
    this.#admission = new Admission(settings, records, this.#presence, this.#training.crashes);
    const now = () => this.#clock.now();
    const { gate } = this.#training;
    this.#delivery = new Delivery(parts, this.#presence, gate, this.status, this.#outbox.send, now);
    this.#fetching = new Fetching(settings, parts, this.#presence, gate, {
      ask: (get) => this.#outbox.send("get", get, 0),
      deliver: (work, piece) => this.#events.put({ type: "piece", work, piece }),
      now,
    });
  }

  get state(): AgentState {
    return this.#machine.state;
  }

  /** Asks for the end; returns at once. */
  stop(reason = "stopped"): void {
    this.#events.put({ type: "stop", reason });
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
    const stopTicking = this.#clock.every(TICK_S, () => this.#events.putOnce(TICK));
    this.#describe();
    while (this.state !== "stopping") {
      const event = await this.#events.take();
      try {
        await this.#take(event);
      } catch (error) {
        await this.#surprised(error);
      }
      this.status.set(shown(this.state, this.#work));
    }
    stopTicking();
    unsubscribe?.();
    this.#work?.fetch?.close();
    await this.#training.drop();
    trainer.kill();
    await this.#outbox.flushed();
    await transport.stop();
    this.status.set({ state: "stopped" });
  }

  async #restore(): Promise<void> {
    await this.#training.crashes.restore();
    const work = await this.#delivery.restore();
    if (work === null) return;
    await this.#admission.replayed(work); // never: so that it is known as settled once it is acknowledged
    this.#work = work;
    this.#machine.move("restored");
    this.#machine.hold(this.#delivery.reconsider(work), "uploading");
    this.status.set(shown(this.state, work));
  }

  async #take(event: AgentEvent): Promise<void> {
    switch (event.type) {
      case "connected":
        this.#outbox.connected();
        this.status.set({ connection: "connected" });
        return this.#hello();
      case "disconnected":
        this.#outbox.disconnected();
        return this.status.set({ connection: "offline" });
      case "denied":
        return this.#denied(event.reason);
      case "received":
        return this.#received(event.payload);
      case "piece":
        return this.#arrived(event.work, event.piece);
      case "progress":
      case "failed":
      case "trained":
        return event.work === this.#work ? this.#heard(event.work, event) : undefined;
      case "data":
        return this.#describe();
      case "described":
        return event.isNews ? this.#hello() : undefined;
      case "conditions":
        this.#training.gate.changed();
        return this.#tick();
      case "tick":
        return this.#tick();
      case "stop":
        this.#outbox.send("bye", { reason: event.reason });
        this.#machine.move("stop");
    }
  }

  #denied(reason: string): void {
    this.#outbox.disconnected();
    this.status.set({ connection: "denied" });
    this.status.failed("access-denied", reason);
    this.#machine.move("stop");
  }

  // hello

  /** Loading a runtime takes its time on a phone; meanwhile the page shows the connection. */
  #describe(): void {
    this.#presence.describe(this.#clock.now()).then(
      (isNews) => this.#events.put({ type: "described", isNews }),
      (error: unknown) => this.status.tell(error),
    );
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
      this.status.tell(error);
      complain(this.#outbox.send, error, this.#work, envelope?.id ?? "");
    }
  }

  async #dispatch(envelope: Envelope): Promise<void> {
    switch (envelope.kind) {
      case "order":
        return this.#ordered(await readOrder(this.settings, envelope));
      case "block":
        return this.#arrived(this.#work, envelope.read(Block));
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

  // order

  async #ordered(order: WorkOrder): Promise<void> {
    const work = this.#work;
    const taken = await Assignment.taken(order, this.#clock.now());
    const replayed = await this.#admission.replayed(taken);
    const { assignment_id } = order;
    if (work !== null && work.identity === taken.identity) {
      work.deadlineAt = deadlineOf(order, this.#clock.now());
      this.#outbox.send("accept", { assignment_id });
      work.uploader?.again(this.#clock.now());
      return;
    }
    const refusal = replayed ?? (await this.#admission.refusal(taken));
    if (refusal !== null) {
      this.#outbox.send("refuse", toldRefusal(refusal));
      this.status.failed(refusal.code, refusal.reason);
      return;
    }
    if (work !== null) await this.#drop(work);
    this.#work = taken;
    this.#machine.move("order");
    this.status.set({ step: 0, totalSteps: 0, loss: null, lossHistory: [], stepMs: null });
    this.#outbox.send("accept", { assignment_id });
    await this.#fetched(taken, await this.#fetching.begin(taken));
  }

  // fetch

  /** A block that came over MQTT, or a piece over HTTPS. */
  async #arrived(work: Assignment | null, part: Block | Piece): Promise<void> {
    if (work?.fetch == null || work !== this.#work || this.state !== "fetching") return;
    if ("ref" in part && "data" in part) this.status.passed(false, "https", part.data.length);
    await this.#fetched(work, await this.#fetching.take(work, part));
  }

  /** After every step of fetching: it is given up, goes on, waits to go on, or all is here. */
  async #fetched(work: Assignment, refusal: Refuse | null): Promise<void> {
    if (refusal !== null) return this.#giveUp(work, refusal);
    if (work.manifest === null) return this.#machine.hold(work.fetch?.isHeld === true, "fetching");
    if (this.state === "fetching") this.#machine.move("fetched");
    await this.#begin(work);
  }

  // train

  async #begin(work: Assignment): Promise<void> {
    if (await this.#training.begin(work)) this.#machine.move("begin");
  }

  /** What the trainer says; it may have failed or ended just before it was paused. */
  async #heard(work: Assignment, event: TrainingEvent): Promise<void> {
    if (event.type === "progress") {
      work.progress = event.progress;
      return this.status.progress(event.progress);
    }
    if (event.type === "failed") {
      const refusal = await this.#training.failed(work, event.error);
      return refusal === null ? undefined : this.#giveUp(work, refusal);
    }
    await this.#training.done();
    // upload
    await this.#delivery.begin(work, event.trained);
    this.#machine.move("trained");
    this.#machine.hold(this.#delivery.reconsider(work), "uploading");
    if (this.#outbox.isConnected) work.uploader?.tick(this.#clock.now());
  }

  // report and ack

  async #acknowledged(ack: Ack): Promise<void> {
    const work = this.#work;
    await this.#admission.settled(ack.assignment_id);
    if (work === null || ack.assignment_id !== work.order.assignment_id) return;
    if (!ack.accepted) this.status.failed(ack.code || "update-rejected", ack.reason);
    if (work.uploader === null) return this.#drop(work); // settled without this report
    await this.#delivery.forget(work);
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
    if (!this.#presence.isKnown) return this.#presence.isDue(now) ? this.#describe() : undefined;
    const work = this.#work;
    if (work !== null) await this.#tickWork(work, now);
    this.#training.endIfUnused(now, work !== null);
    const beat = this.#presence.heartbeat(now, this.#training.gate.takeNews(), this.state, this.#work);
    if (beat !== null) this.#outbox.send("heartbeat", beat);
  }

  async #tickWork(work: Assignment, now: number): Promise<void> {
    if (work.isExpired(now)) return this.#giveUp(work, work.expiry(this.state));
    if (this.#training.gate.isDue(now)) await this.#reconsider(work);
    if (this.#outbox.isConnected && work === this.#work) work.tick(this.state, now);
  }

  /** Whether the conditions allow what `work` is at, or waits for. */
  async #reconsider(work: Assignment): Promise<void> {
    if (work.uploader !== null) this.#machine.hold(this.#delivery.reconsider(work), "uploading");
    else if (work.manifest === null) await this.#fetched(work, await this.#fetching.reconsider(work));
    else if (this.state === "waiting") await this.#begin(work);
    else if (this.state === "training" && this.#training.pauseIfUnmet(work)) this.#machine.move("paused");
  }

  async #giveUp(work: Assignment, refusal: Refuse): Promise<void> {
    await this.#drop(work);
    this.#outbox.send("refuse", toldRefusal(refusal));
    this.status.failed(refusal.code, refusal.reason);
  }

  async #drop(work: Assignment): Promise<void> {
    this.#work = null;
    work.fetch?.close();
    this.#machine.move("dropped");
    await this.#training.drop();
    await this.#delivery.forget(work);
  }

  /** An error that nobody expected ends the work in hand, not the agent. */
  async #surprised(error: unknown): Promise<void> {
    const work = this.#work;
    const reason = error instanceof Error ? error.message : String(error);
    if (work !== null && !(error instanceof MessageRejected)) {
      await this.#giveUp(work, work.refusal("error", reason)).catch(() => {}); // of the same cause
    }
    this.status.tell(error);
  }
}
