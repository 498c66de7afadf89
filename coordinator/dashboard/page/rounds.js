// A round's time line by device: when its order was sent, taken and answered, and what became of it.

import { el, facts, setText, svg } from "./dom.js";
import { clock, duration, memory, milliseconds, moment, number, plural, traffic, whole } from "./format.js";
import { deviceLink } from "./fleet.js";
import { lines, swatch } from "./plot.js";
import { read, roundsInOrder, store } from "./store.js";
import { table } from "./table.js";
import { ASSIGNMENT, fate, fateColour, ROUND } from "./words.js";

const WIDTH = 400;

export function rounds(options) {
  let wanted = options.get("round") ?? "", entries = [], loaded = "", isLoading = false;
  const choose = el("select", { id: "round", onchange: () => { wanted = choose.value; update(); } });
  const step = by => () => {
    const place = choose.selectedIndex + by;
    if (place < 0 || place >= choose.options.length) return;
    wanted = choose.options[place].value;
    update();
  };
  const earlier = el("button", { type: "button", onclick: step(-1) }, "Earlier"), later = el("button", { type: "button", onclick: step(1) }, "Later");
  const newest = el("button", { type: "button", onclick: () => { wanted = ""; update(); } }, "Follow the newest");
  const told = el("div"), answers = el("div", { class: "charts" }), problem = el("p", { class: "problem", role: "alert", hidden: true });
  let span = [0, 1];
  const columns = [
    { name: "Device", text: entry => entry.device, sort: entry => entry.device, node: (entry, text) => deviceLink(text) },
    { name: "Sent, at work, answered", bar: true, text: entry => `${entry.sent_at} ${entry.accepted_at} ${entry.answered_at} ${span} ${entry.state}`, node: entry => bar(entry, span) },
    { name: "What became of it", text: fate, sort: fate, mark: entry => fateColour(entry), node: (entry, text) => el("span", { title: text }, swatch(fateColour(entry)), " ", text) },
    { name: "Answered after", number: true, text: entry => duration(took(entry)), sort: took },
    { name: "Level", wide: true, text: entry => entry.level, sort: entry => entry.level },
    { name: "Loss", number: true, wide: true, text: entry => number(entry.loss), sort: entry => entry.loss },
    { name: "Step", number: true, wide: true, text: entry => milliseconds(entry.step_ms), sort: entry => entry.step_ms },
    { name: "Measured", number: true, wide: true, text: entry => memory(entry.measured_peak_bytes), sort: entry => entry.measured_peak_bytes, bad: entry => entry.is_over_budget },
    { name: "Up", number: true, wide: true, text: entry => entry.bytes_up ? traffic(entry.bytes_up) : "", sort: entry => entry.bytes_up },
  ];
  const rows = table("Devices of the round", columns, entry => entry.assignment_id, { sortBy: columns[0], empty: "Nobody had an order in this attempt." });
  const none = el("p", { class: "empty", hidden: true }, "No round yet: the coordinator waits for devices, or plans the first one.");
  const body = el("div", { hidden: true });
  const node = el("section", { "aria-label": "Rounds" }, el("h2", {}, "Rounds"), none, body);
  body.append(
    el("div", { class: "row" }, el("label", { for: "round" }, "Round"), choose, earlier, later, newest), told, problem, answers,
    el("h3", {}, "Time line by device"),
    el("ul", { class: "legend" },
      el("li", {}, mark("M0 8H20", "var(--cell-line)"), "order sent, not taken yet"), el("li", {}, mark("M0 8H20", "var(--one)", 8), "at work"),
      ["reported", "refused", "rejected", "expired", "barred"].map(name => el("li", {}, swatch(name), name === "barred" ? "set aside" : ASSIGNMENT[name]))),
    rows.node);

  function current() {
    const all = roundsInOrder();
    return all.find(round => `${round.round}.${round.attempt}` === wanted) ?? all.at(-1);
  }

  function options_(all) {
    if (choose.options.length !== all.length) {
      choose.replaceChildren(...all.map(round => el("option", { value: `${round.round}.${round.attempt}` })));
    }
    all.forEach((round, place) => {
      const repeat = round.attempt ? `, attempt ${round.attempt + 1}` : "";
      setText(choose.options[place], `${round.round + 1}${repeat}: ${ROUND[round.state]}`);
    });
  }

  async function fetchEntries(round) {
    const name = `${round.round}.${round.attempt}`;
    if (isLoading) return;
    isLoading = true;
    try {
      entries = await read(`/api/rounds/${round.round}/${round.attempt}`);
      loaded = `${name} ${JSON.stringify(round.assigned)} ${round.state} ${round.quarantined}`;
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      setText(problem, `The round's devices cannot be read: ${error.message}`);
      return;
    } finally {
      isLoading = false;
    }
    const now = current();
    if (now && `${now.round}.${now.attempt}` !== name) return update();
    draw(now);
  }

  function draw(round) {
    const from = round.planned_at ?? Math.min(...entries.map(entry => entry.planned_at ?? Infinity));
    const until = round.ended_at ?? round.aggregating_at ?? Date.now() / 1000;
    const last = Math.max(from + 0.001, until, ...entries.map(entry => entry.answered_at ?? 0));
    span = [from, round.ended_at || round.state === "aggregating" ? last : Math.max(last, Date.now() / 1000)];
    rows.update(entries);
    const times = entries.filter(entry => entry.answered_at).map(entry => entry.answered_at - from).sort((a, b) => a - b);
    answers.replaceChildren(entries.length > 20 && times.length > 1 ? lines(
      [{ name: "answers", points: times.map((time, place) => [time, place + 1]) }],
      { x: "seconds since the round was planned", y: "devices", caption: "Devices that have answered, by time", fromZero: true, format: value => whole(value) }) : "");
  }

  function update() {
    const all = roundsInOrder();
    none.hidden = all.length > 0;
    body.hidden = all.length === 0;
    const round = current();
    if (!round) return;
    options_(all);
    choose.value = `${round.round}.${round.attempt}`;
    earlier.disabled = choose.selectedIndex === 0;
    later.disabled = choose.selectedIndex === all.length - 1;
    const asked = Object.values(round.assigned).reduce((a, b) => a + b, 0);
    told.replaceChildren(facts([
      ["state", ROUND[round.state]],
      ["orders", whole(asked)],
      ["reports", whole(round.assigned.reported ?? 0)],
      ["counted", whole(round.counted)],
      ["refused", whole(round.assigned.refused ?? 0)],
      ["too late", whole(round.assigned.expired ?? 0)],
      ["rejected", whole(round.assigned.rejected ?? 0)],
      ["set aside", whole(round.quarantined)],
      ["at work", whole((round.assigned.open ?? 0) + (round.assigned.accepted ?? 0))],
      ["mean training loss", number(round.loss) || "-"],
      ["planned", moment(round.planned_at) || "not known"],
      ["took", duration(round.ended_at && round.planned_at ? round.ended_at - round.planned_at : null) || "-"],
    ]), round.why ? el("p", { class: "problem" }, `Repeated: ${round.why}`) : "");
    if (loaded !== `${round.round}.${round.attempt} ${JSON.stringify(round.assigned)} ${round.state} ${round.quarantined}`) fetchEntries(round);
    else if (!round.ended_at) draw(round);
  }

  return { node, update, wants: ["rounds", "devices"] };
}

const took = entry => entry.answered_at && entry.sent_at ? Math.max(0, entry.answered_at - entry.sent_at) : null;

function bar(entry, [from, until]) {
  const at = time => Math.max(0, Math.min(WIDTH, ((time - from) / (until - from)) * WIDTH));
  const end = entry.answered_at ?? until, sent = entry.sent_at ?? entry.planned_at;
  if (!sent) return el("span", { class: "soft" }, "times are not known");
  const parts = [svg("path", { d: `M${at(sent)} 12H${at(entry.accepted_at ?? end)}`, stroke: "var(--cell-line)", "stroke-width": 2 })];
  if (entry.accepted_at) parts.push(svg("path", { d: `M${at(entry.accepted_at)} 12H${at(end)}`, stroke: "var(--one)", "stroke-width": 9 }));
  if (entry.answered_at) parts.push(svg("rect", { x: Math.min(WIDTH - 6, at(end) - 3), y: 4, width: 6, height: 16, fill: `var(--${fateColour(entry)})` }));
  const told = `sent ${clock(sent)}${entry.accepted_at ? `, taken ${clock(entry.accepted_at)}` : ""}${entry.answered_at ? `, answered ${clock(entry.answered_at)}` : ", not answered yet"}`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} 24`, preserveAspectRatio: "none", role: "img", "aria-label": told }, svg("title", {}, told), parts);
}

const mark = (path, stroke, width = 2) => svg("svg", { width: 20, height: 16, viewBox: "0 0 20 16", "aria-hidden": "true" }, svg("path", { d: path, stroke, "stroke-width": width }));
