// The run's audit log: who did what, when.

import { el, setText } from "./dom.js";
import { moment, whole } from "./format.js";
import { read, store } from "./store.js";
import { table } from "./table.js";

export const eventColumns = [
  { name: "Number", number: true, wide: true, text: event => String(event.number), sort: event => event.number },
  { name: "Time", text: event => moment(event.at), sort: event => event.at },
  { name: "What", text: event => event.action, sort: event => event.action },
  { name: "About", text: event => about(event.subject), sort: event => event.subject,
    node: (event, text) => event.subject.startsWith("device:") ? el("a", { href: `#device/${encodeURIComponent(event.subject.slice(7))}` }, text) : text },
  { name: "Details", text: event => details(event.details) },
  { name: "By", wide: true, text: event => event.actor, sort: event => event.actor },
];

// Rounds count from 0 in the log and from 1 for people.
function about(subject) {
  const round = /^round:(\d+)\.(\d+)$/.exec(subject);
  if (!round) return subject;
  return `round ${Number(round[1]) + 1}${round[2] === "0" ? "" : `, attempt ${Number(round[2]) + 1}`}`;
}

export const details = values => Object.entries(values).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

export function eventsView() {
  let words = "";
  const search = el("input", { type: "search", placeholder: "device, action, person", oninput: () => { words = search.value.toLowerCase(); update(); } });
  const count = el("span", { class: "soft", role: "status" });
  const more = el("button", { type: "button", onclick: earlier }, "Earlier entries");
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const rows = table("Ledger events", eventColumns, event => event.number, { sortBy: eventColumns[0], descending: true, empty: "No entry matches." });
  const node = el("section", { "aria-label": "Events" }, el("h2", {}, "Ledger events"),
    el("p", { class: "soft" }, "The audit log of the run, the newest first. apportion audit verify checks whether it is whole."),
    el("div", { class: "row" }, el("label", {}, "Search", search), count, more), problem, rows.node);

  async function earlier() {
    try {
      const found = await read(`/api/events?before=${store.events[0]?.number ?? 0}`);
      store.events.unshift(...found);
      problem.hidden = true;
      update();
    } catch (error) {
      problem.hidden = false;
      setText(problem, `Earlier entries cannot be read: ${error.message}`);
    }
  }

  function update() {
    const kept = words ? store.events.filter(event => `${event.action} ${event.subject} ${event.actor} ${details(event.details)}`.toLowerCase().includes(words)) : store.events;
    const all = store.run?.last_event ?? store.events.length;
    setText(count, `${whole(kept.length)} of ${whole(store.events.length)} shown; the log has ${whole(all)} entries`);
    more.hidden = !store.events.length || store.events[0].number <= 1;
    rows.update(kept);
  }

  return { node, update, wants: ["events"] };
}
