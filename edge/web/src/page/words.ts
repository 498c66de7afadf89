/** States, reasons and problems in the words of whoever owns the phone. */

import type { PageState, Problem, TrainingState } from "./model";
import { bytesText, countText, kept } from "./quantities";

/** A headline of at most four words, a sentence, and how it is meant. */
export interface Headline {
  readonly title: string;
  readonly detail: string;
  readonly tone: "busy" | "calm" | "waiting" | "bad";
}

/** What `table` has under `key`, which others may have written: `constructor` is no entry of it. */
function entryOf<Entry>(table: Readonly<Record<string, Entry>>, key: string): Entry | undefined {
  return Object.hasOwn(table, key) ? table[key] : undefined;
}

const WAITING: Readonly<Record<string, string>> = {
  battery: "Waiting: battery low",
  charging: "Waiting for the charger",
  temperature: "Waiting to cool down",
  memory: "Waiting for memory",
  storage: "Waiting for storage",
  time: "Waiting for its hours",
  hidden: "Waiting: page is hidden",
  network: "Waiting for Wi-Fi",
};

/** The state of training. Offline is told only where it stops anything. */
export function headline(state: PageState): Headline {
  const { training } = state;
  if (state.missing.length > 0) {
    return { title: "This browser cannot train", detail: `It lacks ${listed(state.missing)}.`, tone: "bad" };
  }
  if (training.activity === "elsewhere") {
    return {
      title: "Open in another tab",
      detail: "Another tab of this browser takes part already. When it is closed, this one goes on.",
      tone: "waiting",
    };
  }
  if (training.connection === "denied") {
    return {
      title: "No longer admitted",
      detail: "The coordinator refuses this phone: its admission was revoked, or its token replaced.",
      tone: "bad",
    };
  }
  if (!state.wantsTraining || training.activity === "stopped") {
    return { title: "Stopped by you", detail: "Nothing is trained or sent until you switch it on.", tone: "calm" };
  }
  switch (training.activity) {
    case "waiting":
      return {
        title: entryOf(WAITING, training.waitingFor) ?? "Waiting",
        detail: sentence(training.reason) || "Training goes on by itself.",
        tone: "waiting",
      };
    case "training":
      return { title: "Training", detail: trainingDetail(state), tone: "busy" };
    case "fetching":
      return { title: "Getting the model", detail: fetchedText(training), tone: "busy" };
    case "uploading":
      return { title: "Sending the result", detail: "The trained weights go to the coordinator.", tone: "busy" };
    default:
      return idle(state);
  }
}

function idle(state: PageState): Headline {
  if (state.training.connection !== "connected") {
    const isFirst = state.training.connection === "connecting";
    return {
      title: isFirst ? "Connecting" : "Offline",
      detail: isFirst
        ? "Getting ready, and looking for the coordinator."
        : state.training.rounds > 0
          ? "The run has ended, or the coordinator is out of reach. If it comes back, this goes on by itself."
          : "It will go on when the coordinator is reached.",
      tone: isFirst ? "calm" : "waiting",
    };
  }
  if (state.data.entries.length === 0) {
    return { title: "No examples yet", detail: "Add some under Data, and this phone can take part.", tone: "waiting" };
  }
  return { title: "Ready", detail: "This phone trains as soon as its turn comes.", tone: "calm" };
}

function trainingDetail(state: PageState): string {
  const examples = countText(exampleCount(state), "example");
  const isOffline = state.training.connection !== "connected";
  return isOffline ? `On ${examples}; offline, the result is sent later.` : `On ${examples} that stay on this phone.`;
}

function fetchedText(training: TrainingState): string {
  if (training.totalBytes === 0) return "It is kept here, and fetched only once.";
  return `${bytesText(training.fetchedBytes)} of ${bytesText(training.totalBytes)}; what is here already is not fetched again.`;
}

const PROBLEMS: Readonly<Record<string, readonly [title: string, next: string]>> = {
  "token-used": ["This link was used already", "Ask for a new link; each admits one device, once."],
  "token-expired": ["This link has expired", "Ask for a new link."],
  "service-unreachable": ["The coordinator is not reached", "Check the network, then try again."],
  "answer-lost": ["The connection ended too early", "Try again: it goes on where this ended."],
  "bad-reply": ["The coordinator's answer is unusable", "Nothing was kept. Tell whoever invited you."],
  "no-such-token": ["This link is not known", "Copy the whole link again, or ask for a new one."],
  "access-denied": ["No longer admitted", "Ask for a new link, then join again."],
  // Of an order that came, or of a message of ours that was not believed.
  "bad-signature": [
    "A signature was not right",
    "The message was not used. If this comes again, tell whoever invited you.",
  ],
  "replayed-order": ["An old order came again", "Nothing was done with it."],
  "artifact-corrupt": ["The model arrived damaged", "It was thrown away and is fetched again."],
  "parity-failed": ["The model computes otherwise here", "The coordinator is told; nothing was trained."],
  "out-of-memory": ["Memory ran out", "Close other pages, or lower the memory budget under Device."],
  "trainer-crashed": ["The training broke off", "It is tried again by itself."],
  "trainer-failed": ["The training broke off", "The coordinator is told, and may send other work."],
  "deadline-expired": ["Too late for this round", "The next round comes by itself."],
  "update-rejected": ["The result was not used", "The coordinator says why. The next round comes by itself."],
  "stale-round": ["Too late for this round", "The next round comes by itself."],
  "unknown-assignment": ["This work is not known any more", "Other work comes by itself."],
  "unknown-blob": ["The model is gone meanwhile", "The coordinator is told, and sends other work."],
  "bad-message": ["A message could not be read", "It was not used."],
  "unsupported-version": ["Page and coordinator differ", "Reload this page while the coordinator is reached."],
  "unsupported-encoding": ["The model came in an unknown form", "Reload this page while the coordinator is reached."],
  "bad-data": ["These examples do not fit", "Change or remove them under Data."],
  "no-data": ["No examples yet", "Add some under Data."],
  "store-full": ["No room left", "Clear the cache under Device, or free some storage."],
  "broker-unreachable": ["The coordinator is not reached", "It is tried again by itself."],
  "device-refused": ["This work does not fit here", "The coordinator is told, and sends other work."],
  unsupported: ["This browser cannot train", "Use a current Chrome, Firefox or Safari, over https."],
  "bad-config": ["This is not a join link", "Copy the whole link, or scan the code."],
};

/** Their hints name the coordinator's commands, which are of no use on a phone. */
const OWN_HINT = new Set(["token-used", "token-expired", "no-such-token", "access-denied"]);

/** Title and next step of a problem; the library's own hint goes before ours where it is meant for this reader. */
export function problemWords(problem: Problem): { readonly title: string; readonly next: string } {
  const [title, next] = entryOf(PROBLEMS, problem.code) ?? [
    "Something went wrong",
    "Reload the page; it goes on where it was.",
  ];
  return { title, next: (!OWN_HINT.has(problem.code) && sentence(problem.hint)) || next };
}

const PRESSURES: Readonly<Record<string, string>> = {
  nominal: "Light",
  fair: "Moderate",
  serious: "High",
  critical: "Very high",
};

export function pressureText(pressure: string): string {
  return entryOf(PRESSURES, pressure) ?? "Not told";
}

const KINDS: Readonly<Record<string, string>> = {
  hello: "Hello: who this is",
  heartbeat: "Still here, and the step",
  bye: "Goodbye",
  profile: "What this device can do",
  order: "Work order",
  accept: "Work accepted",
  refuse: "Work refused, and why",
  get: "Request for a piece of the model",
  block: "Piece of the model",
  offer: "Offer of the trained weights",
  grant: "Leave to send them",
  put: "Piece of the trained weights",
  report: "Result: counts and timing",
  ack: "Receipt",
  error: "An error",
  https: "Model, over HTTPS",
};

export function kindText(kind: string): string {
  return entryOf(KINDS, kind) ?? kind;
}

export function exampleCount(state: PageState): number {
  return state.data.entries.reduce((sum, entry) => sum + entry.count, 0);
}

/** Class -> examples, over all that was added. */
export function classCounts(state: PageState): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const entry of state.data.entries) {
    for (const [label, count] of Object.entries(entry.labels)) counts[label] = (counts[label] ?? 0) + count;
  }
  return counts;
}

/** With a capital, where it does not begin with an address, and a full stop. */
export function sentence(text: string): string {
  const plain = kept(text.trim());
  if (plain === "") return "";
  const ended = /[.!?]$/.test(plain) ? plain : `${plain}.`;
  return /^\S+:\/\//.test(ended) ? ended : ended.charAt(0).toUpperCase() + ended.slice(1);
}

function listed(names: readonly string[]): string {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
