// What came of it: score by capacity level, loss, bytes by direction and kind, privacy spent.

import { el, facts } from "./dom.js";
import { number, traffic, whole } from "./format.js";
import { lines } from "./plot.js";
import { committed, store } from "./store.js";
import { table } from "./table.js";

export function results() {
  const told = el("div"), charts = el("div", { class: "charts" }), levels = el("div"), bytes = el("div");
  const node = el("section", { "aria-label": "Results" }, el("h2", {}, "Results"), told, charts, levels, bytes);

  function update() {
    const rounds = committed();
    const scored = rounds.filter(round => Object.keys(round.scores).length);
    const labels = [...new Set(scored.flatMap(round => Object.keys(round.scores)))].sort((a, b) => (b === "server") - (a === "server") || a.localeCompare(b));
    const metrics = [...new Set(scored.flatMap(round => Object.values(round.scores).flatMap(values => Object.keys(values))))].filter(name => name !== "examples");
    const main = metrics[0], spent = rounds.filter(round => round.privacy);
    const name = label => (label === "server" ? "global model" : label);
    const final = scored.at(-1);
    told.replaceChildren(facts([
      ["rounds done", whole(rounds.length)],
      ...(final && main ? [[`${main} of the global model`, number(final.scores.server?.[main] ?? Object.values(final.scores)[0][main])]] : []),
      ...(rounds.length ? [["mean training loss", number(rounds.at(-1).loss) || "-"]] : []),
      ["sent to devices", traffic(payload("down"))],
      ["sent by devices", traffic(payload("up"))],
      ...(spent.length ? [[`epsilon spent at delta ${spent.at(-1).privacy.delta}`, number(spent.at(-1).privacy.epsilon, 3)]] : []),
    ]));
    const trained = rounds.filter(round => round.loss !== null);
    charts.replaceChildren(...[
      ...metrics.map(metric => lines(labels.map(label => ({
        name: name(label), named: true, points: scored.filter(round => round.scores[label]?.[metric] !== undefined).map(round => [round.round + 1, round.scores[label][metric]]),
      })), { x: "round", y: metric, caption: `${metric} on held-out data, by capacity level`, format: value => number(value) })),
      lines([{ name: "loss", points: trained.map(round => [round.round + 1, round.loss]), colour: "two" }],
        { x: "round", y: "loss", caption: "Mean training loss on the devices", format: value => number(value) }),
      lines([
        { name: "to devices", named: true, points: rounds.map(round => [round.round + 1, round.bytes_down / 1e6]) },
        { name: "from devices", named: true, points: rounds.map(round => [round.round + 1, round.bytes_up / 1e6]), colour: "three", isDashed: true },
      ], { x: "round", y: "MB (10^6 bytes)", caption: "Bytes of each round, as devices counted them", fromZero: true, format: value => `${number(value, 2)} MB` }),
      spent.length ? lines([{ name: "epsilon", points: spent.map(round => [round.round + 1, round.privacy.epsilon]), colour: "four" }],
        { x: "round", y: "epsilon", caption: `Privacy spent by all rounds so far, at delta ${spent.at(-1).privacy.delta}`, fromZero: true, format: value => number(value, 3) }) : null,
    ].filter(Boolean));
    levels.replaceChildren(...(final ? [el("h3", {}, `Scores after round ${final.round + 1}`), scores(final, labels, metrics, name)] : []));
    bytes.replaceChildren(el("h3", {}, "Bytes by direction and kind"), traffics());
  }

  return { node, update, wants: ["rounds", "traffic"] };
}

const payload = direction => store.traffic.filter(row => row.direction === direction).reduce((total, row) => total + row.payload_bytes, 0);

function scores(round, labels, metrics, name) {
  const columns = [
    { name: "Model", text: label => name(label) },
    ...metrics.map(metric => ({ name: metric, number: true, text: label => number(round.scores[label]?.[metric]), sort: label => round.scores[label]?.[metric] })),
  ];
  const rows = table("Scores by capacity level", columns, label => label);
  rows.update(labels);
  return rows.node;
}

function traffics() {
  const columns = [
    { name: "Direction", text: row => (row.direction === "up" ? "from devices" : "to devices") },
    { name: "Over", text: row => row.scheme.toUpperCase() },
    { name: "Weights, artifacts, updates", number: true, text: row => traffic(row.payload_bytes), sort: row => row.payload_bytes },
    { name: "Headers and repeats", number: true, text: row => traffic(row.wire_bytes - row.payload_bytes), sort: row => row.wire_bytes - row.payload_bytes },
    { name: "On the wire", number: true, text: row => traffic(row.wire_bytes), sort: row => row.wire_bytes },
  ];
  const rows = table("Bytes by direction and kind", columns, row => `${row.direction} ${row.scheme}`,
    { empty: "Nothing was counted yet: the coordinator writes what it counted at the end of each round." });
  rows.update(store.traffic);
  return rows.node;
}
