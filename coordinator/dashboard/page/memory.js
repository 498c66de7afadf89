// Memory and step time: predicted beside measured, against the budget.

import { el, facts, svg } from "./dom.js";
import { deviceLink } from "./fleet.js";
import { memory as shown, MIB, milliseconds, whole } from "./format.js";
import { scatter } from "./plot.js";
import { store } from "./store.js";
import { table } from "./table.js";

const WIDTH = 240;

export function memoryView() {
  let most = 1;
  const columns = [
    { name: "Device", text: row => row.device, sort: row => row.device, node: (row, text) => deviceLink(text) },
    { name: "Level", text: row => row.level, sort: row => row.level },
    { name: "Form", wide: true, text: row => row.form, sort: row => row.form },
    { name: "Against the budget", bar: true, text: row => `${row.budget_bytes} ${row.predicted_peak_bytes} ${row.measured_peak_bytes} ${most}`, node: row => bar(row, most) },
    { name: "Budget", number: true, text: row => shown(row.budget_bytes) || "no limit", sort: row => row.budget_bytes },
    { name: "Predicted", number: true, text: row => shown(row.predicted_peak_bytes), sort: row => row.predicted_peak_bytes },
    { name: "Measured", number: true, text: row => shown(row.measured_peak_bytes) || "-", sort: row => row.measured_peak_bytes, bad: isOver },
    { name: "Measured / predicted", number: true, wide: true, text: row => row.measured_peak_bytes ? (row.measured_peak_bytes / row.predicted_peak_bytes).toFixed(2) : "", sort: row => row.measured_peak_bytes / row.predicted_peak_bytes || null },
    { name: "Step predicted", number: true, wide: true, text: row => milliseconds(row.predicted_step_ms), sort: row => row.predicted_step_ms },
    { name: "Step measured", number: true, wide: true, text: row => milliseconds(row.step_ms), sort: row => row.step_ms },
  ];
  const rows = table("Memory and step time by device", columns, row => row.device, { sortBy: columns[0], empty: "No device has had an order yet." });
  const told = el("div"), charts = el("div", { class: "charts" });
  const node = el("section", { "aria-label": "Memory and time" }, el("h2", {}, "Memory and step time"),
    el("p", { class: "soft" }, "Peak memory of supervisor and trainer together, for the step that each device had last. Predicted: what the planner expected. Measured: the largest that the device reported. MB of 2^20 bytes."),
    told, charts, el("h3", {}, "By device"),
    el("ul", { class: "legend" }, el("li", {}, box("none", "var(--ink)"), "budget"), el("li", {}, box("var(--one)"), "measured"), el("li", {}, box("var(--two)", "none", 4), "predicted")),
    rows.node);
  let drawn = "";

  function update() {
    const all = [...store.devices.values()].map(view => view.record).filter(record => record && record.round >= 0);
    most = Math.max(1, ...all.map(row => Math.max(row.budget_bytes, row.predicted_peak_bytes, row.measured_peak_bytes)));
    const measured = all.filter(row => row.measured_peak_bytes), timed = all.filter(row => row.step_ms && row.predicted_step_ms);
    told.replaceChildren(facts([
      ["devices with a budget", whole(all.filter(row => row.budget_bytes).length)],
      ["measured", whole(measured.length)],
      ["over their budget", whole(all.filter(isOver).length)],
      ["measured more than predicted", whole(measured.filter(row => row.measured_peak_bytes > row.predicted_peak_bytes).length)],
    ]));
    rows.update(all);
    const mark = JSON.stringify([...measured, ...timed].map(row => [row.predicted_peak_bytes, row.measured_peak_bytes, row.step_ms]));
    if (mark === drawn) return;
    drawn = mark;
    charts.replaceChildren(
      scatter(measured.map(row => ({ x: row.predicted_peak_bytes / MIB, y: row.measured_peak_bytes / MIB, title: row.device })),
        { x: "predicted peak, MB", y: "measured peak, MB", caption: "Peak memory: a point above the dashed line took more than predicted" }),
      timed.length ? scatter(timed.map(row => ({ x: row.predicted_step_ms, y: row.step_ms, title: row.device })),
        { x: "predicted step, ms", y: "measured step, ms", caption: "Step time: a point above the dashed line was slower than predicted", colour: "four" })
        : el("figure", {}, el("p", { class: "empty" }, "No step time was predicted: no device has measured its speed yet (apportion profile --ladder)."), el("figcaption", {}, "Step time, predicted and measured")));
  }

  return { node, update, wants: ["devices"] };
}

const isOver = row => Boolean(row.budget_bytes && row.measured_peak_bytes > row.budget_bytes);

export function bar(row, most) {
  const at = bytes => (bytes / most) * (WIDTH - 4) + 1;
  const told = `measured ${shown(row.measured_peak_bytes) || "nothing yet"}, predicted ${shown(row.predicted_peak_bytes)}, budget ${shown(row.budget_bytes) || "none"}`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} 24`, preserveAspectRatio: "none", role: "img", "aria-label": told }, svg("title", {}, told),
    row.measured_peak_bytes ? svg("rect", { x: 1, y: 7, width: at(row.measured_peak_bytes) - 1, height: 10, fill: isOver(row) ? "var(--bad)" : "var(--one)" }) : null,
    row.budget_bytes ? svg("rect", { x: 1, y: 3, width: at(row.budget_bytes) - 1, height: 18, fill: "none", stroke: "var(--ink)", "stroke-width": 1 }) : null,
    row.predicted_peak_bytes ? svg("path", { d: `M${at(row.predicted_peak_bytes)} 1V23`, stroke: "var(--two)", "stroke-width": 3 }) : null);
}

const box = (fill, stroke = "none", width = 18) => svg("svg", { width: 20, height: 14, viewBox: "0 0 20 14", "aria-hidden": "true" },
  svg("rect", { x: 1, y: 1, width, height: 12, fill, stroke }));
