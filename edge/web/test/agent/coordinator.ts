// A coordinator by script: serves blobs, takes updates, remembers what it was told. It speaks the real bytes.

import { ed25519 } from "@noble/curves/ed25519";
import { encodeMsgpack } from "../../src/contracts/codec";
import { type Envelope, messageId, seal, unseal } from "../../src/contracts/envelope";
import {
  Accept,
  type Bodies,
  ErrorMessage,
  Get,
  Heartbeat,
  Hello,
  type Kind,
  Offer,
  Put,
  Refuse,
} from "../../src/contracts/messages";
import { assignmentId, type BlobRef, WorkOrder } from "../../src/contracts/plan";
import { TrainReport } from "../../src/contracts/report";
import { orderMessage } from "../../src/contracts/signing";
import { down, everyone, kindOf } from "../../src/contracts/topics";
import { sha256Hex } from "../../src/store/digest";
import { type InMemoryBroker, InMemoryTransport } from "../../src/transport/inMemory";

export const FEDERATION = "digits";
export const DEVICE = "phone-1";

export const GRAPH = bytesOf(50_000, 3);
export const WEIGHTS = bytesOf(100_000, 5);
export const UPDATE = bytesOf(60_000, 7);

export function bytesOf(length: number, seed: number): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => (i * seed + (i >> 8)) & 255);
}

export async function refOf(data: Uint8Array): Promise<BlobRef> {
  return { digest: await sha256Hex(data), size: data.length, encoding: "raw", encoded_size: data.length };
}

export async function manifestOf(change: Record<string, unknown> = {}, graph = GRAPH): Promise<Uint8Array> {
  const manifest = {
    format: "onnx_step",
    runtime: "onnxruntime",
    minimum_runtime_version: "1.20",
    programs: [{ name: "train", file: "train.onnx", inputs: ["w"], outputs: [{ name: "w_next", tensor: "w" }] }],
    tensors: [{ name: "w", shape: [2, 3], dtype: "float32", role: "parameter" }],
    files: [{ name: "train.onnx", sha256: await sha256Hex(graph), size: graph.length }],
    batch: 4,
    loss: "cross_entropy",
    optimizer: "sgd",
    norm: "batch",
    input: { layout: "features", shape: [3] },
    classes: ["a", "b"],
    cost: {
      parameters: 6,
      trained_parameters: 6,
      macs: 6,
      state_bytes: 24,
      live_bytes: 48,
      predicted_peak_bytes: 10_000_000,
      batch: 4,
    },
    self_test: {
      formula: "splitmix64-uniform/1",
      seed: 1,
      batch: 4,
      hyper: {},
      losses: [1],
      rel_tolerance: 0.001,
      bias: 0,
      gain: 1,
    },
    parity: { max_grad_rel_err: 0, torch_fp32_rel_err: 0, loss_rel_err: 0, tolerance: 0.001, steps: 3 },
    build: {},
    export_key: "00",
    schema: "apportion.manifest/1",
    ...change,
  };
  return new TextEncoder().encode(JSON.stringify(manifest));
}

export interface Message {
  readonly kind: string;
  readonly envelope: Envelope;
}

export class Coordinator {
  readonly told: Message[] = [];
  readonly blobs = new Map<string, Uint8Array>();
  readonly received = new Map<string, Uint8Array>();
  /** Digests for which other bytes are sent, so many times. */
  readonly tampered = new Map<string, number>();
  isServing = true;
  isGranting = true;
  isAcking = true;
  blockBytes = 16_384;
  window = 2;
  /** Signs orders when set. */
  secret: Uint8Array | null = null;
  readonly transport: InMemoryTransport;

  constructor(readonly broker: InMemoryBroker) {
    this.transport = new InMemoryTransport(broker, [`apportion/v1/${FEDERATION}/up/#`]);
    this.transport.start((event) => {
      if (event.type === "received") void this.take(kindOf(event.topic), unseal(event.payload));
    });
  }

  async publish(data: Uint8Array): Promise<BlobRef> {
    const ref = await refOf(data);
    this.blobs.set(ref.digest, data);
    return ref;
  }

  /** An order of a whole round; its blobs are served from now on. */
  async order(change: Partial<WorkOrder> = {}, manifest?: Uint8Array): Promise<WorkOrder> {
    await this.publish(GRAPH);
    const round = change.round ?? 1;
    const data = manifest ?? (await manifestOf());
    return WorkOrder.make({
      assignment_id: assignmentId(FEDERATION, round, DEVICE, 0),
      federation: FEDERATION,
      device: DEVICE,
      round,
      attempt: 0,
      artifact: await this.publish(data),
      weights: await this.publish(WEIGHTS),
      schedule: { epochs: 1, steps: 0, turns: [{ program: "train", advance_batch: true }] },
      batch: 4,
      last_batch: "drop",
      data_seed: 2n ** 63n + 5n,
      hyper: { lr: 0.1 },
      upload: ["w"],
      deadline_s: 600,
      artifact_signature: this.secret === null ? new Uint8Array(0) : ed25519.sign(data, this.secret),
      ...change,
    });
  }

  async send<K extends Kind>(kind: K, body: Bodies[K]): Promise<void> {
    const { secret } = this;
    const isSigned = kind === "order" && secret !== null;
    const sign = async (packed: Uint8Array) => ed25519.sign(orderMessage(packed), secret as Uint8Array);
    const payload = await seal(kind, body, isSigned ? { sign } : {});
    this.transport.publish(down(FEDERATION, DEVICE, kind), payload, 1);
  }

  /** An empty hello to everyone, as after a restart. */
  async askWho(): Promise<void> {
    const body = encodeMsgpack({ read: () => null, write: (writer) => writer.map(0) }, null);
    const id = messageId();
    // {v, id, kind, sent_at, body} by hand: the empty hello is no Hello.
    const head = await seal("bye", { reason: "" }, { id });
    const { encode } = await import("@msgpack/msgpack");
    const whole = encode({ v: 1, id, kind: "hello", sent_at: 0.5, body: {} });
    if (head.length > 0 && body.length > 0) this.transport.publish(everyone(FEDERATION, "hello"), whole, 1);
  }

  /** What was told under `kind`, in order. */
  kinds(): string[] {
    return this.told.map((message) => message.kind);
  }

  count(kind: string): number {
    return this.told.filter((message) => message.kind === kind).length;
  }

  last(kind: string): Envelope {
    const found = this.told.filter((message) => message.kind === kind).at(-1);
    if (found === undefined) throw new Error(`nothing of kind ${kind} came, but ${this.kinds().join(", ")}`);
    return found.envelope;
  }

  hello = () => this.last("hello").read(Hello);
  accept = () => this.last("accept").read(Accept);
  refusal = () => this.last("refuse").read(Refuse);
  heartbeat = () => this.last("heartbeat").read(Heartbeat);
  report = () => this.last("report").read(TrainReport);
  complaint = () => this.last("error").read(ErrorMessage);

  /** Digests that were asked for, each once. */
  asked(): string[] {
    const gets = this.told.filter((message) => message.kind === "get");
    return [...new Set(gets.map((message) => message.envelope.read(Get).digest))];
  }

  private async take(kind: string, envelope: Envelope): Promise<void> {
    this.told.push({ kind, envelope });
    if (kind === "get" && this.isServing) await this.serve(envelope.read(Get));
    if (kind === "offer" && this.isGranting) {
      const { assignment_id, update } = envelope.read(Offer);
      const held = this.received.get(update.digest) ?? new Uint8Array();
      this.received.set(update.digest, held);
      await this.grant(assignment_id, update.digest, held.length);
    }
    if (kind === "put" && this.isGranting) {
      const put = envelope.read(Put);
      let held = this.received.get(put.digest) ?? new Uint8Array();
      if (put.offset === held.length) {
        held = Uint8Array.from([...held, ...put.data]);
        this.received.set(put.digest, held);
      }
      await this.grant(put.assignment_id, put.digest, held.length);
    }
    if (kind === "report" && this.isAcking) {
      await this.send("ack", {
        assignment_id: envelope.read(TrainReport).assignment_id,
        accepted: true,
        code: "",
        reason: "",
      });
    }
  }

  private async serve({ digest, offset, length }: Get): Promise<void> {
    const blob = this.blobs.get(digest);
    if (blob === undefined) return this.send("error", { code: "unknown-blob", message: "not here", about: digest });
    const data = blob.slice(offset, offset + length);
    const left = this.tampered.get(digest) ?? 0;
    if (left > 0 && offset === 0) {
      this.tampered.set(digest, left - 1);
      data[0] = (data[0] ?? 0) ^ 1;
    }
    await this.send("block", { digest, offset, total: blob.length, data });
  }

  private async grant(assignment_id: string, digest: string, offset: number): Promise<void> {
    await this.send("grant", { assignment_id, digest, offset, block_bytes: this.blockBytes, window: this.window });
  }
}
