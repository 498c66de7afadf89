/** An agent of an enrolled device, with everything that a browser gives it. */

import { ConfigError } from "../contracts/errors";
import { deviceFilters } from "../contracts/topics";
import type { DataSource } from "../data/dataSource";
import type { DeviceKey } from "../identity/deviceKey";
import { type Enrolment, enrolledKey, enrolment } from "../identity/enrolment";
import { messageSigner } from "../identity/messageSigner";
import { Trust } from "../identity/trust";
import type { BlobStore } from "../store/blobStore";
import { openSharedStore } from "../store/openStore";
import type { Records } from "../store/records";
import type { Trainer } from "../trainer/trainer";
import { MqttTransport } from "../transport/mqtt";
import { Agent } from "./agent";
import { holdAgent } from "./agentLock";
import type { Conditions } from "./conditions";
import { farewell } from "./outbox";
import type { ProfileSource } from "./profileSource";
import { type AgentSettings, DEFAULT_SETTINGS } from "./settings";
import { StatusBoard } from "./status";

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
  /** What the owner chose, read when it is this tab's turn: the tab before it may have changed it. */
  readonly chosen?: () => Promise<Pick<AgentSettings, "budgetBytes" | "threads">>;
}

export interface RunningAgent {
  readonly status: Pick<StatusBoard, "current" | "subscribe">;
  /** Resolves when it takes no part any more: stopped, denied, or failed, which the status tells. */
  readonly ended: Promise<void>;
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
 * if ((await enrolment(records)) === null) await enrol(parseClaimLink(link), { records });
 * const data = await DataStore.open(DEFAULT_SETTINGS.data);
 * for (const source of await readPicked(filesOfInput(files))) await data.add(source);
 * const store = await openSharedStore(DEFAULT_SETTINGS.store);
 * const surroundings = new BrowserSurroundings();
 * const agent = await startAgent({
 *   records,
 *   store,
 *   data,
 *   trainer: new WorkerTrainer(),
 *   profile: BrowserProfile.of(surroundings, records, store),
 *   conditions: new DeviceConditions(surroundings),
 *   settings: { budgetBytes: 512 << 20 },
 * });
 * agent.status.subscribe(({ state, round, loss }) => console.log(state, round, loss));
 *
 * @throws ConfigError when the device is not enrolled, or the browser has no storage that a worker shares.
 */
export async function startAgent(options: StartOptions): Promise<RunningAgent> {
  const { records, settings } = options;
  await identityOf(records); // said at once, not when another tab has ended
  const name = settings?.store ?? DEFAULT_SETTINGS.store;
  const store = options.store ?? (await openSharedStore(name));
  const status = new StatusBoard();
  const waiting = new AbortController();
  let agent: Agent | null = null;

  async function takePart(): Promise<void> {
    const release = await holdAgent(name, () => status.set({ state: "elsewhere" }), waiting.signal);
    try {
      const chosen = await options.chosen?.();
      status.set({ state: "idle" });
      // Only now: the tab before this one may have joined anew, or left.
      agent = await makeAgent({ ...options, store, settings: { ...settings, ...chosen } }, status);
      if (!waiting.signal.aborted) await agent.run();
    } finally {
      agent = null;
      release();
    }
  }
  const ended = takePart()
    .catch((error) => {
      if (!waiting.signal.aborted) status.tell(error);
    })
    .then(() => status.set({ state: "stopped" }));
  return {
    status,
    ended,
    dataChanged: () => agent?.dataChanged(),
    stop: (reason) => {
      waiting.abort();
      agent?.stop(reason);
      return ended;
    },
  };
}

async function identityOf(records: Records): Promise<{ enrolled: Enrolment; key: DeviceKey }> {
  const [enrolled, key] = [await enrolment(records), await enrolledKey(records)];
  if (enrolled !== null && key !== null) return { enrolled, key };
  throw new ConfigError(["this device has joined no federation"], { hint: "open the link that its owner has" });
}

async function makeAgent(options: StartOptions & { readonly store: BlobStore }, status: StatusBoard): Promise<Agent> {
  const { records, trainer, data, profile, conditions, store } = options;
  const { enrolled, key } = await identityOf(records);
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
  return new Agent(settings, { transport, store, records, trainer, data, profile, conditions, sign, status });
}
