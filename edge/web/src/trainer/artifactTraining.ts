/** Carries out orders for one artifact: its blobs to a session, the data to batches, the result to an update. */

import { DeviceRefused, MessageRejected } from "../contracts/errors";
import { type ArtifactManifest, parseManifest } from "../contracts/manifest";
import type { WorkOrder } from "../contracts/plan";
import { encodeTensors } from "../contracts/tensorFile";
import { Examples } from "../data/batches";
import type { DataSource } from "../data/dataSource";
import type { LocalData } from "../data/examples";
import type { BlobStore } from "../store/blobStore";
import { MemoryMeter, runtimeBytes } from "./memory";
import { NAME, type WasmRuntime } from "./runtime";
import { checkSelfTest } from "./selfTest";
import { Session } from "./session";
import type { Progress, Trained } from "./trainer";
import { train, uploaded } from "./training";
import { Weights } from "./weights";

export interface TrainingPlace {
  readonly store: BlobStore;
  readonly data: DataSource;
  readonly threads: number;
  readonly selfTest: boolean;
  /** Awaited between two steps. */
  readonly between: () => Promise<void>;
  readonly onProgress: (progress: Progress) => void;
}

/** Keeps the session of its artifact for the next order, and so its peak: another artifact needs another worker. */
export class ArtifactTraining {
  readonly meter = new MemoryMeter();
  readonly #runtime: WasmRuntime;
  readonly #idleBytes: number;
  #open: { readonly digest: string; readonly manifest: ArtifactManifest; readonly session: Session } | null = null;

  /** @param runtime just loaded: what it holds then is what it holds idle */
  constructor(runtime: WasmRuntime) {
    this.#runtime = runtime;
    this.#idleBytes = runtimeBytes();
    this.meter.note();
  }

  /**
   * @throws ArtifactCorrupt for blobs that are not what the order says, DataError for data that do not fit,
   * DeviceRefused for an order that cannot be carried out here or a self-test that fails
   */
  async carryOut(order: WorkOrder, place: TrainingPlace): Promise<Trained> {
    if (order.encoding !== "raw") {
      throw new DeviceRefused(`update encoding '${order.encoding}' is unknown here, known is raw; order that`);
    }
    const { manifest, session } = await this.#session(order, place);
    const data = await place.data.load(manifest.input);
    const dataBytes = sizeOf(data);
    this.meter.hold(dataBytes);
    try {
      const examples = new Examples(data, manifest);
      await this.#loadWeights(session, order, place.store);
      const outcome = await train(session, manifest, order, examples, {
        between: place.between,
        onStep: (step, totalSteps, loss, stepMs) =>
          place.onProgress({ step, totalSteps, loss, stepMs, peakBytes: this.meter.peakBytes }),
      });
      const update = encodeTensors(new Map(order.upload.map((name) => [name, uploaded(session, name)])));
      this.meter.note(2 * update.byteLength); // the tensors it is made of are there still
      return {
        ...outcome,
        numExamples: examples.length,
        peakBytes: this.meter.peakBytes,
        idleBytes: this.#idleBytes + dataBytes,
        threads: place.threads,
        labels: order.report_labels ? examples.labels() : null,
        update,
      };
    } finally {
      this.meter.hold(-dataBytes);
    }
  }

  async #session(order: WorkOrder, place: TrainingPlace): Promise<{ manifest: ArtifactManifest; session: Session }> {
    const { digest } = order.artifact;
    if (this.#open !== null && this.#open.digest === digest) return this.#open;
    if (this.#open !== null) throw new DeviceRefused("this worker holds another artifact; start a fresh one");
    const manifest = parseManifest(await place.store.read(digest));
    if (manifest.runtime !== NAME) {
      throw new MessageRejected(`artifact is for runtime '${manifest.runtime}', this is '${NAME}'`);
    }
    const digests = new Map(manifest.files.map((file) => [file.name, file.sha256]));
    const files = (name: string): Promise<Uint8Array> => place.store.read(digests.get(name) ?? "");
    const session = new Session(this.#runtime, manifest, files, this.meter);
    if (place.selfTest) await checkSelfTest(session, manifest);
    this.#open = { digest, manifest, session };
    return this.#open;
  }

  async #loadWeights(session: Session, order: WorkOrder, store: BlobStore): Promise<void> {
    const weights = await store.read(order.weights.digest);
    const constants = order.constants && (await store.read(order.constants.digest));
    const bytes = weights.byteLength + (constants?.byteLength ?? 0);
    this.meter.hold(bytes);
    session.loadState(new Weights(weights, constants, `weights of round ${order.round}`));
    this.meter.hold(-bytes);
  }
}

function sizeOf(data: LocalData): number {
  const bytes = (values: object): number => (ArrayBuffer.isView(values) ? values.byteLength : 0);
  return bytes(data.x.values) + bytes(data.y.values);
}
