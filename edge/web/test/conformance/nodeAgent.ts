// The agent in Node instead of a browser, for the conformance kit: its own code but for storage and the worker.
//
//   apportion conformance --runtime onnxruntime_web --agent "edge/web/node_modules/.bin/vite-node --root edge/web
//     edge/web/test/conformance/nodeAgent.ts {web_socket_url} {user} {password} {federation} {device} {data} {state}
//     {trust_file} {budget_mb}"

import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { deserialize, serialize } from "node:v8";
import { Agent } from "../../src/agent/agent";
import { farewell } from "../../src/agent/outbox";
import { DEFAULT_SETTINGS } from "../../src/agent/settings";
import type { InputSpec } from "../../src/contracts/manifest";
import { DeviceProfile } from "../../src/contracts/profile";
import { deviceFilters } from "../../src/contracts/topics";
import type { DataSource, DataSummary } from "../../src/data/dataSource";
import type { LocalData } from "../../src/data/examples";
import { joined } from "../../src/data/joining";
import { readNpz } from "../../src/data/npz";
import { Trust } from "../../src/identity/trust";
import { FileStore } from "../../src/store/fileStore";
import type { FileEntry, Files } from "../../src/store/files";
import type { Records } from "../../src/store/records";
import { ArtifactTraining } from "../../src/trainer/artifactTraining";
import { countMemories, runtimeBytes } from "../../src/trainer/memory";
import { PauseGate } from "../../src/trainer/pauseGate";
import { VERSION, WasmRuntime } from "../../src/trainer/runtime";
import type { Progress, Ready, Trained, Trainer, TrainRequest } from "../../src/trainer/trainer";
import { MqttTransport } from "../../src/transport/mqtt";

/** Written beside and renamed: whole or not at all. */
function writeWhole(path: string, data: Uint8Array): void {
  writeFileSync(`${path}.tmp`, data);
  renameSync(`${path}.tmp`, path);
}

class FolderFiles implements Files {
  constructor(private readonly folder: string) {
    mkdirSync(folder, { recursive: true });
  }

  async list(): Promise<FileEntry[]> {
    const names = readdirSync(this.folder).filter((name) => !name.endsWith(".tmp"));
    return names.map((name) => {
      const { size, mtimeMs } = statSync(join(this.folder, name));
      return { name, size, writtenAt: mtimeMs };
    });
  }

  async read(name: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
    return (await this.has(name)) ? new Uint8Array(readFileSync(join(this.folder, name))) : undefined;
  }

  async has(name: string): Promise<boolean> {
    return existsSync(join(this.folder, name));
  }

  async write(name: string, data: Uint8Array): Promise<void> {
    writeWhole(join(this.folder, name), data);
  }

  async remove(name: string): Promise<void> {
    rmSync(join(this.folder, name), { force: true });
  }
}

class FileRecords implements Records {
  readonly #values: Map<string, unknown>;

  constructor(private readonly path: string) {
    this.#values = existsSync(path) ? deserialize(readFileSync(path)) : new Map();
  }

  async get<T>(key: string): Promise<T | undefined> {
    return structuredClone(this.#values.get(key)) as T | undefined;
  }

  async put(key: string, value: unknown): Promise<void> {
    this.#values.set(key, structuredClone(value));
    writeWhole(this.path, serialize(this.#values));
  }

  async delete(key: string): Promise<void> {
    this.#values.delete(key);
    writeWhole(this.path, serialize(this.#values));
  }

  async keys(prefix: string): Promise<string[]> {
    return [...this.#values.keys()].filter((key) => key.startsWith(prefix)).sort();
  }
}

class FolderData implements DataSource {
  constructor(private readonly folder: string) {}

  async summary(): Promise<DataSummary> {
    const numExamples = this.#parts().reduce((sum, part) => sum + (part.x.shape[0] ?? 0), 0);
    return { numExamples, labels: {}, error: "" };
  }

  async load(input: InputSpec): Promise<LocalData> {
    return joined(this.#parts(), input);
  }

  #parts(): LocalData[] {
    const names = readdirSync(this.folder).filter((name) => name.endsWith(".npz"));
    return names.sort().map((name) => readNpz(new Uint8Array(readFileSync(join(this.folder, name))), name));
  }
}

/** What a worker does, in this process: to kill a training is to have it throw before its next step. */
class InProcessTrainer implements Trainer {
  readonly #gate = new PauseGate();
  #loading: Promise<WasmRuntime> | null = null;
  #training: ArtifactTraining | null = null;
  #artifact = "";
  #kills = 0;

  constructor(
    private readonly store: FileStore,
    private readonly data: DataSource,
  ) {}

  async ready(): Promise<Ready> {
    await this.#runtime();
    return { runtime: "onnxruntime_web", version: VERSION, idleBytes: runtimeBytes(), maxThreads: 1 };
  }

  async train(request: TrainRequest, onProgress: (progress: Progress) => void): Promise<Trained> {
    const kills = this.#kills;
    const { digest } = request.order.artifact;
    if (this.#training === null || this.#artifact !== digest) {
      this.#training = new ArtifactTraining(await this.#runtime());
      this.#artifact = digest;
    }
    const between = async () => {
      await new Promise((resolve) => setImmediate(resolve));
      if (kills !== this.#kills) throw new Error("killed");
      await this.#gate.pass();
    };
    const { store, data } = this;
    return this.#training.carryOut(request.order, {
      store,
      data,
      threads: 1,
      selfTest: request.selfTest,
      between,
      onProgress,
    });
  }

  pause(): void {
    this.#gate.close();
  }

  resume(): void {
    this.#gate.open();
  }

  kill(): void {
    this.#kills += 1;
  }

  #runtime(): Promise<WasmRuntime> {
    const find = createRequire(import.meta.url).resolve;
    this.#loading ??= WasmRuntime.load(1, {
      mjs: pathToFileURL(find("onnxruntime-web/ort-wasm-simd-threaded.mjs")).href,
      wasm: find("onnxruntime-web/ort-wasm-simd-threaded.wasm"),
    });
    return this.#loading;
  }
}

const [url = "", user = "", password = "", federation = "", device = "", folder = "", state = "", trust = "", budget] =
  process.argv.slice(2);
countMemories();
mkdirSync(state, { recursive: true });
const store = new FileStore(new FolderFiles(join(state, "blobs")));
const data = new FolderData(folder);
const agent = new Agent(
  {
    ...DEFAULT_SETTINGS,
    federation,
    device,
    budgetBytes: Number(budget) * 2 ** 20,
    trust: Trust.fromPem(readFileSync(trust, "utf8")),
  },
  {
    transport: new MqttTransport({
      url,
      device: user,
      password,
      subscriptions: deviceFilters(federation, device),
      will: await farewell(federation, device, "connection lost"),
    }),
    store,
    records: new FileRecords(join(state, "records")),
    trainer: new InProcessTrainer(store, data),
    data,
    profile: {
      profile: async () =>
        DeviceProfile.make({
          device,
          supervisor_idle_bytes: process.memoryUsage().rss,
          probed_at: Date.now() / 1000,
        }),
      measured: async () => {},
    },
  },
);
process.removeAllListeners("SIGTERM"); // vite-node ends at once by its own
process.on("SIGTERM", () => agent.stop());
await agent.run();
process.exit(0);
