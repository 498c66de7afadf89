/** States of the page by name, for pictures and accessibility checks. Nothing of this is in the built page. */

import { FIRST_STATE, type PageState, type TrainingState } from "../../../src/page/model";

const LOSSES = Array.from({ length: 74 }, (_, i) => 2.3 * Math.exp(-i / 26) + 0.31 + 0.09 * Math.sin(i * 1.7));

const JOINED: PageState = {
  ...FIRST_STATE,
  phase: "joined",
  membership: {
    device: "phone-anna",
    federation: "handwriting",
    broker: "wss://192.168.178.20:8884",
    key: "9f31 c02a 77de 4b10",
  },
  device: {
    system: "Chrome 130, Android 14",
    cores: 8,
    maxThreads: 4,
    budgetBytes: 512_000_000,
    suggestedBytes: 768_000_000,
    battery: { percent: 64, isCharging: false },
    temperatureC: null,
    pressure: "fair",
    storageBytes: 41_300_000,
    storageQuota: 500_000_000,
    unreadable: ["Metered links: this browser does not tell which link it uses; training goes on over any."],
  },
  conditions: { onlyWhileCharging: false, minBatteryPercent: 20, allowMetered: false, trainHidden: false, threads: 2 },
  data: {
    entries: [
      {
        id: "1",
        name: "Digits that I wrote",
        kind: "images",
        count: 197,
        bytes: 1_240_000,
        labels: { "0": 41, "1": 38, "2": 29, "3": 44, "4": 12, "7": 33 },
      },
      { id: "2", name: "Camera", kind: "camera", count: 20, bytes: 830_000, labels: { "7": 14, "9": 6 } },
      {
        id: "3",
        name: "a-table-with-an-exceedingly-long-name-from-some-export-2026-11-20.csv",
        kind: "arrays",
        count: 10,
        bytes: 12_400,
        labels: { "0": 10 },
      },
    ],
    error: "",
    busy: "",
  },
  traffic: {
    sentBytes: 2_310_000,
    receivedBytes: 14_820_000,
    rows: Array.from({ length: 30 }, (_, i) => ({
      at: Date.UTC(2026, 10, 20, 14, 5, 59 - i),
      isSent: i % 4 !== 0,
      kind: ["order", "heartbeat", "put", "report", "ack", "hello", "profile", "get"][i % 8] as string,
      count: i % 8 === 2 ? 14 : 1,
      bytes: [812, 131, 16_410, 640, 90, 1_204, 2_110, 210][i % 8] as number,
    })),
  },
};

function training(change: Partial<TrainingState>): PageState {
  return { ...JOINED, training: { ...FIRST_STATE.training, connection: "connected", ...change } };
}

const RUNNING = { round: 11, step: 74, totalSteps: 120, losses: LOSSES, stepMs: 412, usedBytes: 167_000_000 };
const INVITED: PageState = {
  ...FIRST_STATE,
  phase: "invited",
  invitation: { device: "phone-anna", host: "192.168.178.20:8443" },
};

export const SCENES: Readonly<Record<string, PageState>> = {
  uninvited: { ...FIRST_STATE, phase: "uninvited" },
  invited: INVITED,
  again: { ...INVITED, membership: JOINED.membership },
  used: {
    ...INVITED,
    problem: { code: "token-used", message: "the token of phone-anna was used at 14:02", hint: "" },
  },
  unsupported: {
    ...INVITED,
    missing: ["WebAssembly SIMD", "a store for files"],
    problem: {
      code: "unsupported",
      message: "this browser lacks WebAssembly SIMD and a store for files",
      hint: "",
    },
  },
  training: training({ activity: "training", ...RUNNING }),
  waiting: training({
    activity: "waiting",
    waitingFor: "battery",
    reason: "Battery at 18 %, training goes on at 23 %",
    ...RUNNING,
  }),
  ready: training({}),
  fetching: training({ activity: "fetching", round: 12, fetchedBytes: 3_400_000, totalBytes: 14_100_000 }),
  offline: training({ connection: "offline" }),
  stopped: { ...training({ activity: "stopped" }), wantsTraining: false },
  denied: {
    ...training({ connection: "denied" }),
    problem: { code: "access-denied", message: "the broker refuses phone-anna", hint: "" },
  },
  forged: {
    ...training({}),
    problem: {
      code: "bad-signature",
      message: "order 4f81 of round 12 is not signed by the key of handwriting",
      hint: "",
    },
  },
  empty: { ...training({}), data: { entries: [], error: "", busy: "" } },
};
