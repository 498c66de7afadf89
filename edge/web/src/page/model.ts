/** What the views show and what they may ask for. The app fills it from the library; tests fill it by script. */

import type { LabelledWindow } from "../data/dataStore";
import type { LabelledPicture } from "../data/pickedFiles";

/** Where a device is in its life on this page. */
export type Phase = "starting" | "uninvited" | "invited" | "joined";

/** Something that went wrong, for a card. `code` is the library's stable name of it. */
export interface Problem {
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}

export interface Invitation {
  readonly device: string;
  readonly host: string;
}

export interface Membership {
  readonly device: string;
  readonly federation: string;
  readonly broker: string;
  /** SHA-256 of the public key, its first bytes, as the owner can compare it. */
  readonly key: string;
}

export type Connection = "connected" | "connecting" | "offline" | "denied";

/** `stopped` is the owner's own doing; `elsewhere` means that another tab of this browser runs the agent. */
export type Activity =
  | "idle"
  | "fetching"
  | "training"
  | "uploading"
  | "waiting"
  | "stopping"
  | "stopped"
  | "elsewhere";

export interface TrainingState {
  readonly connection: Connection;
  readonly activity: Activity;
  /** The condition that is waited for, such as `battery`; empty when none is. */
  readonly waitingFor: string;
  /** A sentence with the values. */
  readonly reason: string;
  readonly round: number | null;
  readonly step: number;
  readonly totalSteps: number;
  /** Losses of the running or last assignment, one per step. */
  readonly losses: readonly number[];
  readonly stepMs: number | null;
  readonly usedBytes: number | null;
  readonly fetchedBytes: number;
  readonly totalBytes: number;
  readonly rounds: number;
}

export interface Battery {
  readonly percent: number;
  readonly isCharging: boolean;
}

export interface DeviceFacts {
  readonly system: string;
  readonly cores: number;
  readonly maxThreads: number;
  readonly budgetBytes: number;
  readonly suggestedBytes: number;
  readonly battery: Battery | null;
  /** In degrees Celsius, or null: browsers seldom tell. */
  readonly temperatureC: number | null;
  /** The processor's load as Compute Pressure says it: nominal, fair, serious, critical; empty when unknown. */
  readonly pressure: string;
  readonly storageBytes: number;
  readonly storageQuota: number;
  /** Conditions that this browser cannot tell about, a sentence each. */
  readonly unreadable: readonly string[];
}

/** What the owner decides. */
export interface OwnerConditions {
  readonly onlyWhileCharging: boolean;
  /** 0: any; null: nothing was chosen, see `leastBattery`. */
  readonly minBatteryPercent: number | null;
  readonly allowMetered: boolean;
  readonly trainHidden: boolean;
  /** 0: as many as ordered. */
  readonly threads: number;
}

export interface DataEntry {
  readonly id: string;
  readonly name: string;
  readonly kind: "arrays" | "images" | "camera" | "motion";
  readonly count: number;
  readonly bytes: number;
  /** Class -> examples; none where labels are no classes. */
  readonly labels: Readonly<Record<string, number>>;
}

export interface DataState {
  readonly entries: readonly DataEntry[];
  /** Why the data cannot be used; empty when they can. */
  readonly error: string;
  /** What is being done, in words; empty when nothing is. */
  readonly busy: string;
}

export interface TrafficRow {
  readonly at: number;
  readonly isSent: boolean;
  readonly kind: string;
  /** Messages of this kind that followed one another. */
  readonly count: number;
  readonly bytes: number;
}

export interface Traffic {
  readonly sentBytes: number;
  readonly receivedBytes: number;
  /** The latest, newest first. */
  readonly rows: readonly TrafficRow[];
}

export interface PageState {
  readonly phase: Phase;
  /** What this browser lacks, in words; training is impossible when there is any. */
  readonly missing: readonly string[];
  readonly problem: Problem | null;
  readonly invitation: Invitation | null;
  readonly isJoining: boolean;
  readonly membership: Membership | null;
  readonly wantsTraining: boolean;
  readonly training: TrainingState;
  readonly device: DeviceFacts;
  readonly conditions: OwnerConditions;
  readonly data: DataState;
  readonly traffic: Traffic;
}

/** What the views ask for. A rejected promise becomes a problem on the page; no view handles errors. */
export interface PageActions {
  /** Reads an invitation from a pasted or scanned link. */
  invite(link: string): Promise<void>;
  join(): Promise<void>;
  /** Leaves the invitation alone: this device goes on as what it joined as before. */
  stay(): Promise<void>;
  leave(): Promise<void>;
  setTraining(isWanted: boolean): Promise<void>;
  setBudget(bytes: number): Promise<void>;
  setConditions(change: Partial<OwnerConditions>): Promise<void>;
  clearCache(): Promise<void>;
  /** Files as picked: images in folders named by class, images of one class, npz or CSV. */
  addFiles(files: readonly File[], label: string): Promise<void>;
  addPicture(picture: LabelledPicture): Promise<void>;
  addMotion(windows: readonly LabelledWindow[]): Promise<void>;
  deleteData(id: string): Promise<void>;
  deleteAllData(): Promise<void>;
  dismissProblem(): void;
}

/** A view's part of the page, made once; `show` brings it up to date. */
export interface View {
  readonly root: HTMLElement;
  show(state: PageState): void;
}

export const FIRST_STATE: PageState = {
  phase: "starting",
  missing: [],
  problem: null,
  invitation: null,
  isJoining: false,
  membership: null,
  wantsTraining: true,
  training: {
    connection: "connecting",
    activity: "idle",
    waitingFor: "",
    reason: "",
    round: null,
    step: 0,
    totalSteps: 0,
    losses: [],
    stepMs: null,
    usedBytes: null,
    fetchedBytes: 0,
    totalBytes: 0,
    rounds: 0,
  },
  device: {
    system: "",
    cores: 1,
    maxThreads: 1,
    budgetBytes: 0,
    suggestedBytes: 0,
    battery: null,
    temperatureC: null,
    pressure: "",
    storageBytes: 0,
    storageQuota: 0,
    unreadable: [],
  },
  conditions: {
    onlyWhileCharging: false,
    minBatteryPercent: null,
    allowMetered: false,
    trainHidden: false,
    threads: 0,
  },
  data: { entries: [], error: "", busy: "" },
  traffic: { sentBytes: 0, receivedBytes: 0, rows: [] },
};
