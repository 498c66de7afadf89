// What may be asked of the run, with the token. It is kept in this tab alone and sent in a header, never in an address.

import { el, say, setText } from "./dom.js";
import { store } from "./store.js";

const KEY = "apportion-token";
let token = sessionStorage.getItem(KEY) ?? "";
const changed = new Set();

/** A token that the address brought along is taken out of it. */
export function takeToken() {
  const given = /^#token=([\w-]+)$/.exec(location.hash);
  if (!given) return;
  keep(given[1]);
  history.replaceState(null, "", location.pathname);
}

function keep(value) {
  token = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  for (const callback of changed) callback();
}

async function ask(path, body = {}) {
  const answer = await fetch(path, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const said = await answer.json();
  if (answer.ok) return said;
  if (answer.status === 401) keep("");
  const error = said.error ?? {};
  throw new Error([error.message ?? `the dashboard answered ${answer.status}`, error.hint].filter(Boolean).join("; "));
}

const REQUESTS = [
  { word: "pause", name: "Pause", told: "No further round begins; the open one goes on.", question: "Let no further round begin? The open round goes on." },
  { word: "continue", name: "Continue", told: "The run goes on.", question: "" },
  { word: "drain", name: "Drain", told: "The run ends after the open round. Go on with: apportion resume", question: "End the run once the open round is done? It can be resumed." },
  { word: "stop", name: "Stop", told: "The run stops now; devices keep their work. Go on with: apportion resume", question: "Stop the run at once? It can be resumed, and devices keep their work.", danger: true },
];

/** Buttons that ask once more before they do what cannot be seen to be harmless. */
function sure(name, question, act, danger) {
  const box = el("span", { class: "row" });
  const first = el("button", { type: "button", class: danger ? "danger" : null, onclick: () => (question ? open() : act()) }, name);
  const close = () => { box.replaceChildren(first); first.focus(); };
  const open = () => {
    const no = el("button", { type: "button", onclick: close }, "No");
    box.replaceChildren(question, el("button", { type: "button", class: danger ? "danger" : null, onclick: async () => { close(); await act(); } }, `Yes, ${name.toLowerCase()}`), no);
    no.focus();
  };
  box.append(first);
  return { node: box, button: first };
}

function outcome() {
  const node = el("p", { hidden: true });
  return {
    node,
    show(text, isBad) {
      node.hidden = false;
      node.className = isBad ? "problem" : "soft";
      setText(node, text);
      say(text);
    },
  };
}

export function runRequests() {
  const said = outcome(), asked = el("p", { class: "soft", hidden: true });
  const buttons = REQUESTS.map(request => ({ request, ...sure(request.name, request.question, async () => {
    try {
      await ask(`/api/requests/${request.word}`);
      said.show(request.told, false);
    } catch (error) {
      said.show(`Not done: ${error.message}`, true);
    }
  }, request.danger) }));
  const field = el("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const form = el("form", { class: "row", onsubmit: event => { event.preventDefault(); enter(); } },
    el("label", {}, "Token", field), el("button", { type: "submit" }, "Use it"),
    el("span", { class: "soft" }, "The command that opened this dashboard printed it."));
  const row = el("div", { class: "row" }, buttons.map(each => each.node));
  const box = el("details", { class: "box" }, el("summary", {}, "Pause, drain or stop the run"), form, row, asked, said.node);

  async function enter() {
    keep(field.value.trim());
    field.value = "";
    try {
      await ask("/api/token");
      said.show("The token is right.", false);
    } catch (error) {
      said.show(error.message, true);
    }
    update();
  }

  function update() {
    const run = store.run;
    box.hidden = !run || run.state === "finished";
    if (!run) return;
    form.hidden = Boolean(token);
    row.hidden = !token;
    asked.hidden = !run.request;
    setText(asked, run.request ? `Asked of the run: ${run.request}.` : "");
    for (const { request, button } of buttons) button.disabled = request.word === "continue" ? !run.request : run.request === request.word;
  }

  changed.add(update);
  return { node: box, update };
}

export function deviceRequests(name) {
  const said = outcome();
  const reason = el("input", { type: "text", maxlength: 500, placeholder: "why, kept as evidence" });
  const act = (path, told, body) => async () => {
    try {
      const done = await ask(`/api/devices/${encodeURIComponent(name)}/${path}`, body?.() ?? {});
      said.show(told(done), false);
    } catch (error) {
      said.show(`Not done: ${error.message}`, true);
    }
  };
  const aside = sure("Quarantine", "Keep its update of the open round out of every sum?",
    act("quarantine", done => `Its update of round ${done.round + 1} is set aside.`, () => (reason.value ? { reason: reason.value } : {})), true);
  const back = sure("Release", "Drop its updates from quarantine, and let it take part again? None of them is counted.",
    act("release", done => `${done.released} updates dropped; it may take part from round ${done.barred_until + 1} on.`));
  const locked = el("p", { class: "soft" }, "To quarantine or release it, enter the token under “Pause, drain or stop the run”.");
  const row = el("div", { class: "row" }, el("label", {}, "Reason", reason), aside.node, back.node);
  const node = el("div", {}, locked, row, said.node);

  function update(view) {
    const isOver = store.run?.state === "finished";
    locked.hidden = Boolean(token) || isOver;
    row.hidden = !token || isOver;
    if (!view) return;
    back.button.disabled = !(view.record && (view.record.counts.quarantined || view.record.counts.rejected || view.record.score < 1 || view.record.barred_until >= 0));
  }

  return { node, update };
}
