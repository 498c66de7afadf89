/** An agent of an enrolled device, with everything that a browser gives it. */

import { ConfigError } from "../contracts/errors";
import { deviceFilters } from "../contracts/topics";
import type { DataSource } from "../data/dataSource";
import { enrolledKey, enrolment } from "../identity/enrolment";
import { messageSigner } from "../identity/messageSigner";
import { Trust } from "../identity/trust";
import type { BlobStore } from "../store/blobStore";
import { openStore } from "../store/openStore";
import type { Records } from "../store/records";
import type { Trainer } from "../trainer/trainer";
import { MqttTransport } from "../transport/mqtt";
import { Agent } from "./agent";
import type { Conditions } from "./conditions";
import { holdDevice } from "./deviceLock";
import { farewell } from "./outbox";
import type { ProfileSource } from "./profileSource";
import { type AgentSettings, DEFAULT_SETTINGS } from "./settings";
import type { StatusBoard } from "./status";

export interface StartOptions {
  /** Where the device was enrolled. */
  readonly records: Records;
  readonly trainer: Trainer;
  readonly data: DataSource;
  readonly profile: ProfileSource;
  readonly conditions?: Conditions;
  /** Opened when it is not given; the trainer opens the same one by `settings.store`. */
  readonly store?: BlobStore;
  readonly settings?: Partial<AgentSettings>;
}

export interface RunningAgent {
  readonly status: Pick<StatusBoard, "current" | "subscribe">;
  /** Tells the agent that there are other examples now. */
  dataChanged(): void;
  /** Says goodbye and resolves at the end. What is trained and not acknowledged is kept for the next start. */
  stop(reason?: string): Promise<void>;
}

/**
 * Starts taking part. With another tab at it already, `status.current.state` is `elsewhere` until that one ends.
 *
 * @example
 * const records = new IndexedDbRecords();
 * await enrol(parseClaimLink(location.href), { records });
 * const agent = await startAgent({
 *   records,
 *   trainer: new WorkerTrainer(),
 *   data: await DataStore.open("apportion"),
 *   profile: device.profile,
 *   settings: { budgetBytes: 512 << 20 },
 * });
 * agent.status.subscribe(({ state, round, loss }) => console.log(state, round, loss));
 *
 * @throws ConfigError when the device is not enrolled, or the browser has no storage that a worker shares.
 */
export async function startAgent(options: StartOptions): Promise<RunningAgent> {
  const { records, trainer, data, profile, conditions } = options;
  const [enrolled, key] = [await enrolment(records), await enrolledKey(records)];
  if (enrolled === null || key === null) {
    throw new ConfigError(["this device has joined no federation"], { hint: "open the link that its owner has" });
  }
  const { federation, device } = enrolled;
  const settings: AgentSettings = {
    ...DEFAULT_SETTINGS,
    trust: Trust.fromPem(enrolled.signing_public),
    ...options.settings,
    federation,
    device,
  };
  const sign = messageSigner(key, federation, device);
  const transport = new MqttTransport({
    url: enrolled.broker,
    device: enrolled.user,
    password: enrolled.password,
    subscriptions: deviceFilters(federation, device),
    will: await farewell(federation, device, "connection lost", sign),
  });
  const store = options.store ?? (await sharedStore(settings.store));
  const agent = new Agent(settings, { transport, store, records, trainer, data, profile, conditions, sign });

  const waiting = new AbortController();
  const running = holdDevice(device, () => agent.status.set({ state: "elsewhere" }), waiting.signal).then(
    async (release) => {
      agent.status.set({ state: "idle" });
      try {
        await agent.run();
      } finally {
        release();
      }
    },
  );
  running.catch((error) => agent.status.tell(error));
  return {
    status: agent.status,
    dataChanged: () => agent.dataChanged(),
    stop: async (reason) => {
      agent.stop(reason);
      waiting.abort();
      await running.catch(() => {}); // told by the status
    },
  };
}

async function sharedStore(name: string): Promise<BlobStore> {
  const { store, kind, reason } = await openStore(name);
  if (kind !== "memory") return store;
  throw new ConfigError([`this browser gives the page no storage: ${reason}`], {
    hint: "leave private browsing, or allow this site to store data",
  });
}
