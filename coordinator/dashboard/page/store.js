// The run as the coordinator's ledger and devices say: read whole once, then kept up to date by what changes.

export const store = {
  version: -1, run: null, is_running: false, deadline_left_s: 0, devices: new Map(), rounds: new Map(), events: [], traffic: [],
  problem: "", isConnected: false,
};

const listeners = new Set();
export const listen = callback => listeners.add(callback);

const MOST_EVENTS = 20000;
let source = null;

const keyOf = round => `${round.round}.${round.attempt}`;

function apply(change) {
  const parts = new Set();
  for (const name of ["run", "is_running", "deadline_left_s", "traffic", "problem"]) {
    if (change[name] !== undefined && change[name] !== null) {
      store[name] = change[name];
      parts.add(name);
    }
  }
  for (const view of change.devices ?? []) store.devices.set(view.device, view);
  for (const name of change.gone ?? []) store.devices.delete(name);
  if (change.devices?.length || change.gone?.length) parts.add("devices");
  for (const round of change.rounds ?? []) store.rounds.set(keyOf(round), round);
  if (change.rounds?.length) parts.add("rounds");
  if (change.events?.length) {
    const last = store.events.at(-1)?.number ?? 0;
    store.events.push(...change.events.filter(event => event.number > last));
    if (store.events.length > MOST_EVENTS) store.events.splice(0, store.events.length - MOST_EVENTS);
    parts.add("events");
  }
  store.version = change.version;
  return parts;
}

function tell(parts) {
  for (const callback of listeners) callback(parts);
}

export async function load() {
  const answer = await fetch("/api/state");
  if (!answer.ok) throw new Error(`the dashboard answered ${answer.status}`);
  const whole = await answer.json();
  store.devices.clear();
  store.rounds.clear();
  store.events = [];
  apply(whole);
  store.isConnected = true;
  tell(new Set(["run", "is_running", "devices", "rounds", "events", "traffic", "connection", "all"]));
  follow();
}

function follow() {
  source?.close();
  source = new EventSource(`/api/changes?since=${store.version}`);
  source.addEventListener("open", () => connected(true));
  source.addEventListener("change", message => {
    performance.mark("change-arrived");
    const change = JSON.parse(message.data);
    if (change.version <= store.version) return;
    if (change.version !== store.version + 1) return again();
    tell(apply(change));
    requestAnimationFrame(() => performance.measure("change", "change-arrived"));
  });
  source.addEventListener("reset", again);
  source.addEventListener("error", () => {
    connected(false);
    // The browser asks the old address again, whose version may be long gone: begin anew.
    source.close();
    setTimeout(again, 1500);
  });
}

function connected(isIt) {
  if (store.isConnected === isIt) return;
  store.isConnected = isIt;
  tell(new Set(["connection"]));
}

let isTrying = false;
async function again() {
  if (isTrying) return;
  isTrying = true;
  source?.close();
  try {
    await load();
  } catch {
    connected(false);
    setTimeout(again, 2000);
  } finally {
    isTrying = false;
  }
}

export async function read(path) {
  const answer = await fetch(path);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? `the dashboard answered ${answer.status}`);
  return body;
}

export const roundsInOrder = () => [...store.rounds.values()].sort((a, b) => a.round - b.round || a.attempt - b.attempt);
export const committed = () => roundsInOrder().filter(round => round.state === "committed");
