/**
 * The app behind the views: joins, starts and stops the agent, keeps the owner's choices, and turns every failure into
 * a problem on the page. What trains is loaded when this device has joined, after the views stand.
 */

import { type ClaimLink, parseClaimLink } from "../contracts/claims";
import { EnrolmentFailed } from "../contracts/errors";
import type { LabelledWindow } from "../data/dataStore";
import type { LabelledPicture } from "../data/pickedFiles";
import { enrol, enrolledKey, enrolment, forget } from "../identity/enrolment";
import { IndexedDbRecords } from "../store/indexedDbRecords";
import { LAST_SEEN, type LastSeen } from "./agentView";
import { FIRST_STATE, type OwnerConditions, type PageActions } from "./model";
import { type OwnerSettings, readSettings, writeSettings } from "./ownerSettings";
import type { PageStore } from "./pageStore";
import { problemOf } from "./problem";
import type { Session } from "./session";
import { missingFeatures } from "./support";

/** A stepper is pressed several times in a row; only the last value restarts the agent. */
const RESTART_AFTER_MS = 1_500;

export class App implements PageActions {
  readonly #page: PageStore;
  readonly #records = new IndexedDbRecords();
  #settings: OwnerSettings = { wantsTraining: true, budgetBytes: 0, conditions: FIRST_STATE.conditions };
  #link: ClaimLink | null = null;
  #session: Session | null = null;
  #restart: ReturnType<typeof setTimeout> | undefined;
  /** Starting and stopping follow one another. */
  #turn: Promise<void> = Promise.resolve();

  constructor(page: PageStore) {
    this.#page = page;
  }

  async begin(): Promise<void> {
    await this.#told(async () => {
      const missing = missingFeatures();
      this.#page.change({ missing });
      if (missing.length > 0) {
        this.#page.change({ phase: "uninvited" });
        throw new EnrolmentFailed("unsupported", `this browser lacks ${missing.join(", ")}`);
      }
      this.#settings = await readSettings(this.#records);
      const { wantsTraining, conditions, budgetBytes } = this.#settings;
      this.#page.change({ wantsTraining, conditions, device: { ...this.#page.state.device, budgetBytes } });
      // A link that was opened goes before what this device was: its owner wants to join anew.
      if (location.hash.includes("t=")) {
        await this.invite(location.href);
        if (this.#link !== null) return this.#showMembership();
      }
      await this.#resume();
    });
  }

  async invite(link: string): Promise<void> {
    await this.#told(async () => {
      const parsed = parseClaimLink(link);
      // The page of another coordinator is served, and allowed to claim, by that one alone.
      if (new URL(link.trim()).origin !== location.origin) return location.assign(link.trim());
      this.#link = parsed;
      const invitation = { device: parsed.device || "this phone", host: new URL(parsed.service).host };
      this.#page.change({ phase: "invited", invitation, problem: null });
    }).finally(() => {
      if (this.#link === null && this.#page.state.phase === "starting") this.#page.change({ phase: "uninvited" });
    });
  }

  async join(): Promise<void> {
    const link = this.#link;
    if (link === null || this.#page.state.isJoining || this.#page.state.missing.length > 0) return;
    this.#page.change({ isJoining: true, problem: null });
    await this.#told(async () => {
      await this.#end();
      await enrol(link, { records: this.#records });
      this.#link = null;
      // The token is spent; it need not stay in the address bar, the history or a screenshot.
      history.replaceState(null, "", "./");
      // So that the browser keeps what it stored when it needs room; some ask the owner, which nobody waits for.
      navigator.storage?.persist?.().catch(() => false);
      await this.#resume();
    });
    this.#page.change({ isJoining: false });
  }

  async stay(): Promise<void> {
    this.#link = null;
    history.replaceState(null, "", "./");
    await this.#told(() => this.#resume());
  }

  async leave(): Promise<void> {
    const { missing, device } = this.#page.state;
    const left = this.#next(async () => {
      await this.#session?.stop();
      await (await this.#open()).erase();
      await forget(this.#records);
      for (const key of await this.#records.keys("")) await this.#records.delete(key);
      this.#settings = await readSettings(this.#records);
      this.#session?.setConditions(this.#settings.conditions);
    });
    // The goodbye takes its time; whoever leaves has left at once.
    const budgetBytes = device.suggestedBytes;
    this.#page.change({ ...FIRST_STATE, phase: "uninvited", missing, device: { ...device, budgetBytes } });
    history.replaceState(null, "", "./");
    await this.#told(() => left);
  }

  async setTraining(isWanted: boolean): Promise<void> {
    await this.#keep({ wantsTraining: isWanted });
    await this.#told(() => (isWanted ? this.#start() : this.#end()));
  }

  async setBudget(bytes: number): Promise<void> {
    await this.#keep({ budgetBytes: bytes });
    this.#restartSoon();
  }

  async setConditions(change: Partial<OwnerConditions>): Promise<void> {
    const conditions = { ...this.#settings.conditions, ...change };
    await this.#keep({ conditions });
    if (change.threads !== undefined) this.#restartSoon();
    else this.#session?.setConditions(conditions);
  }

  async clearCache(): Promise<void> {
    await this.#told(async () => {
      // Not under a running training: it reads what is cleared.
      await this.#end();
      await (await this.#open()).clearCache();
      if (this.#settings.wantsTraining) await this.#start();
    });
  }

  async addFiles(files: readonly File[], label: string): Promise<void> {
    await this.#adding(`Adding ${files.length === 1 ? "1 file" : `${files.length} files`}…`, (session) =>
      session.examples.addFiles(files, label),
    );
  }

  async addPicture(picture: LabelledPicture): Promise<void> {
    await this.#adding("Adding the picture…", (session) => session.examples.addPicture(picture));
  }

  async addMotion(windows: readonly LabelledWindow[]): Promise<void> {
    await this.#adding("Adding the recording…", (session) => session.examples.addMotion(windows));
  }

  async deleteData(id: string): Promise<void> {
    await this.#adding("Deleting…", (session) => session.examples.delete(id));
  }

  async deleteAllData(): Promise<void> {
    await this.#adding("Deleting…", (session) => session.examples.clear());
  }

  dismissProblem(): void {
    this.#page.change({ problem: null });
  }

  /** Shows who this device is, if it has joined, and starts what it wants. */
  async #resume(): Promise<void> {
    await this.#showMembership();
    if (this.#page.state.membership === null) return this.#page.change({ phase: "uninvited" });
    const seen = await this.#records.get<LastSeen>(LAST_SEEN);
    const { training } = this.#page.state;
    this.#page.change({
      phase: "joined",
      invitation: null,
      training: { ...training, ...seen, connection: navigator.onLine ? "connecting" : "offline" },
    });
    await this.#open();
    if (this.#settings.wantsTraining) await this.#start();
    else this.#page.change({ training: { ...this.#page.state.training, activity: "stopped" } });
  }

  async #showMembership(): Promise<void> {
    const [enrolled, key] = await Promise.all([enrolment(this.#records), enrolledKey(this.#records)]);
    if (enrolled === null || key === null) return;
    const { device, federation, broker } = enrolled;
    this.#page.change({ membership: { device, federation, broker, key: await fingerprint(await key.publicKey()) } });
  }

  /** Stores and facts of this device, with or without a running agent. */
  async #open(): Promise<Session> {
    if (this.#session !== null) return this.#session;
    const { openSession } = await import("./session");
    this.#session = await openSession(this.#page, this.#records, this.#settings.conditions);
    if (this.#settings.budgetBytes === 0) {
      const { device } = this.#page.state;
      this.#page.change({ device: { ...device, budgetBytes: device.suggestedBytes } });
    }
    return this.#session;
  }

  #start(): Promise<void> {
    return this.#next(async () => {
      const session = await this.#open();
      await session.start(() => this.#chosen(session));
    });
  }

  /** Read again when it is this tab's turn: the tab before it may have changed them. */
  async #chosen(session: Session): Promise<{ budgetBytes: number; threads: number }> {
    this.#settings = await readSettings(this.#records);
    this.#showSettings();
    session.setConditions(this.#settings.conditions);
    if (!this.#settings.wantsTraining) void this.#end();
    return { budgetBytes: this.#page.state.device.budgetBytes, threads: this.#settings.conditions.threads };
  }

  #end(): Promise<void> {
    return this.#next(async () => {
      await this.#session?.stop();
    });
  }

  #restartSoon(): void {
    clearTimeout(this.#restart);
    if (!this.#settings.wantsTraining || this.#page.state.phase !== "joined") return;
    this.#restart = setTimeout(() => {
      void this.#told(async () => {
        await this.#end();
        await this.#start();
      });
    }, RESTART_AFTER_MS);
  }

  #next(work: () => Promise<void>): Promise<void> {
    const done = this.#turn.then(work);
    this.#turn = done.catch(() => undefined); // told to whoever asked for it
    return done;
  }

  #showSettings(): void {
    const { wantsTraining, conditions, budgetBytes } = this.#settings;
    const { device } = this.#page.state;
    const shownBudget = budgetBytes || device.budgetBytes;
    this.#page.change({ wantsTraining, conditions, device: { ...device, budgetBytes: shownBudget } });
  }

  async #keep(change: Partial<OwnerSettings>): Promise<void> {
    this.#settings = { ...this.#settings, ...change };
    this.#showSettings();
    await this.#told(() => writeSettings(this.#records, this.#settings));
  }

  async #adding(busy: string, work: (session: Session) => Promise<void>): Promise<void> {
    this.#page.change({ data: { ...this.#page.state.data, busy } });
    await this.#told(async () => work(await this.#open()));
    this.#page.change({ data: { ...this.#page.state.data, busy: "" } });
  }

  /** Runs `work`; what goes wrong is shown. */
  async #told(work: () => Promise<unknown> | unknown): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.#page.change({ problem: problemOf(error) });
    }
  }
}

/** The first eight bytes of the key's SHA-256, in groups that can be compared by eye. */
async function fingerprint(publicKey: string): Promise<string> {
  if (publicKey === "") return "";
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(publicKey)));
  const hex = Array.from(digest.slice(0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.match(/.{4}/g)?.join(" ") ?? "";
}
