// The page: a header that is always there, and one view at a time, named in the address.

import { device } from "./device.js";
import { el, facts, say, setText } from "./dom.js";
import { eventsView } from "./events.js";
import { fleet } from "./fleet.js";
import { duration, number, traffic, whole } from "./format.js";
import { memoryView } from "./memory.js";
import { model } from "./model.js";
import { runRequests, takeToken } from "./requests.js";
import { results } from "./results.js";
import { rounds } from "./rounds.js";
import { committed, listen, load, roundsInOrder, store } from "./store.js";
import { ROUND } from "./words.js";

const VIEWS = {
  fleet: ["Fleet", fleet], rounds: ["Rounds", rounds], memory: ["Memory and time", memoryView], model: ["Model", model],
  results: ["Results", results], events: ["Events", eventsView],
};

const $ = id => document.getElementById(id);
let view = null, isQueued = false, told = "";
const dirty = new Set();

takeToken();
const requests = runRequests();
$("requests").append(requests.node);
$("views").append(...Object.entries(VIEWS).map(([id, [name]]) => el("li", {}, el("a", { href: `#${id}`, "data-view": id }, name))));

function route() {
  takeToken();
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [name, rest] = path.split("/");
  const options = new URLSearchParams(query);
  view = name === "device" && rest ? device(decodeURIComponent(rest)) : (VIEWS[name] ?? VIEWS.fleet)[1](options);
  const current = name === "device" ? "fleet" : name in VIEWS ? name : "fleet";
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  $("view").replaceChildren(view.node);
  view.update();
}

window.addEventListener("hashchange", () => {
  route();
  if (document.activeElement === document.body || !document.activeElement) $("view").focus({ preventScroll: true });
});

function header() {
  const run = store.run;
  if (!run) return;
  document.title = `${run.name}: Apportion dashboard`;
  setText($("name"), run.name);
  const [words, mood] = run.state === "finished" ? ["finished", ""] : !store.is_running ? ["no coordinator runs", "bad"]
    : run.request === "pause" ? ["paused", ""] : run.request ? [`asked to ${run.request}`, ""] : ["running", "good"];
  setText($("state"), words);
  $("state").className = `pill ${mood}`;
  setText($("link"), store.isConnected ? "" : "not connected: what is shown may be old");
  $("link").className = store.isConnected ? "pill quiet" : "pill bad";
  const done = committed(), training = done.filter(round => round.round < run.rounds_asked);
  const bar = $("progress");
  bar.hidden = false;
  bar.setAttribute("role", "img");
  const share = run.rounds_asked ? Math.min(1, training.length / run.rounds_asked) : 0;
  bar.setAttribute("aria-label", `${training.length} of ${run.rounds_asked} rounds done`);
  if (!bar.firstChild) bar.append(el("div"));
  bar.firstChild.style.width = `${(100 * share).toFixed(1)}%`;
  const open = roundsInOrder().findLast(round => round.state !== "committed" && round.state !== "abandoned");
  const scored = done.findLast(round => round.scores.server), metric = scored && Object.keys(scored.scores.server)[0];
  const views = [...store.devices.values()], here = views.filter(each => !["away", "unasked"].includes(each.status)).length;
  const up = store.traffic.filter(row => row.direction === "up").reduce((sum, row) => sum + row.payload_bytes, 0);
  const down = store.traffic.filter(row => row.direction === "down").reduce((sum, row) => sum + row.payload_bytes, 0);
  const spent = done.findLast(round => round.privacy);
  const lasted = duration((run.ended_at ?? Date.now() / 1000) - run.started_at);
  setText($("what"), [`${run.model} under ${run.method}`, `${whole(run.rounds_asked)} rounds asked for`,
    open ? `round ${open.round + 1}: ${ROUND[open.state]}` : "", run.ended_at ? `took ${lasted}` : `begun ${lasted} ago`].filter(Boolean).join(", "));
  $("facts").replaceChildren(...facts([
    ["rounds done", `${whole(training.length)} of ${whole(run.rounds_asked)}`],
    ["open round", open ? String(open.round + 1) : "none"],
    ...(store.is_running ? [["devices here", `${whole(here)} of ${whole(views.length)}`]] : [["devices", whole(views.length)]]),
    ...(open && store.is_running ? [["reports", `${whole(open.assigned.reported ?? 0)} of ${whole(Object.values(open.assigned).reduce((a, b) => a + b, 0))}`],
      ["time left", duration(store.deadline_left_s) || "-"]] : []),
    ...(scored ? [[metric, number(scored.scores.server[metric])]] : []),
    ...(up || down ? [["to devices", traffic(down)], ["from devices", traffic(up)]] : []),
    ...(spent ? [["epsilon spent", number(spent.privacy.epsilon, 3)]] : []),
  ]).childNodes);
  $("problem").hidden = !store.problem;
  setText($("problem"), store.problem ? `The ledger cannot be read now: ${store.problem}` : "");
  const news = `${words}${open ? `, round ${open.round + 1} ${ROUND[open.state]}` : ""}`;
  if (told && told !== news) say(`The run is ${news}.`);
  told = news;
  requests.update();
}

listen(parts => {
  for (const part of parts) dirty.add(part);
  if (isQueued) return;
  isQueued = true;
  queueMicrotask(() => {
    isQueued = false;
    const isNew = dirty.has("all");
    header();
    if (isNew && !view) route();
    else if (view && (isNew || view.wants.some(part => dirty.has(part)))) view.update();
    dirty.clear();
  });
});

async function begin() {
  try {
    await load();
    performance.mark("first-data");
  } catch (error) {
    $("problem").hidden = false;
    setText($("problem"), `The run cannot be read: ${error.message}. This page tries again every two seconds.`);
    setTimeout(begin, 2000);
  }
}

begin();
