// A device's own page: what it is, what it does, what it did, what the log says of it.

import { el, facts, pairs, setText } from "./dom.js";
import { eventColumns } from "./events.js";
import { heat, power } from "./fleet.js";
import { clock, duration, memory, milliseconds, moment, number, traffic, whole } from "./format.js";
import { bar } from "./memory.js";
import { lines, swatch } from "./plot.js";
import { deviceRequests } from "./requests.js";
import { read, store } from "./store.js";
import { table } from "./table.js";
import { fate, fateColour, STATUS } from "./words.js";

const columns = [
  { name: "Round", number: true, text: entry => `${entry.round + 1}${entry.attempt ? `, attempt ${entry.attempt + 1}` : ""}`, sort: entry => entry.round },
  { name: "What became of it", text: fate, sort: fate, mark: fateColour, node: (entry, text) => el("span", { title: text }, swatch(fateColour(entry)), " ", text) },
  { name: "Level", text: entry => entry.level, sort: entry => entry.level },
  { name: "Sent", wide: true, text: entry => moment(entry.sent_at), sort: entry => entry.sent_at },
  { name: "Answered after", number: true, text: entry => duration(entry.answered_at && entry.sent_at ? Math.max(0, entry.answered_at - entry.sent_at) : null) },
  { name: "Loss", number: true, text: entry => number(entry.loss), sort: entry => entry.loss },
  { name: "Examples", number: true, wide: true, text: entry => entry.num_examples ? whole(entry.num_examples) : "", sort: entry => entry.num_examples },
  { name: "Step", number: true, text: entry => milliseconds(entry.step_ms), sort: entry => entry.step_ms },
  { name: "Predicted", number: true, wide: true, text: entry => memory(entry.predicted_peak_bytes), sort: entry => entry.predicted_peak_bytes },
  { name: "Measured", number: true, wide: true, text: entry => memory(entry.measured_peak_bytes), sort: entry => entry.measured_peak_bytes, bad: entry => entry.is_over_budget },
  { name: "Down", number: true, wide: true, text: entry => entry.bytes_down ? traffic(entry.bytes_down) : "", sort: entry => entry.bytes_down },
  { name: "Up", number: true, wide: true, text: entry => entry.bytes_up ? traffic(entry.bytes_up) : "", sort: entry => entry.bytes_up },
];

export function device(name) {
  let page = null, readFor = "", isReading = false;
  const now = el("div"), problem = el("p", { class: "problem", role: "alert", hidden: true }), profile = el("div"), charts = el("div", { class: "charts" }), log = el("div");
  const rows = table(`Work of ${name}`, columns, entry => entry.assignment_id, { empty: "It has had no order yet." });
  const events = table(`Ledger events of ${name}`, eventColumns, event => event.number, { sortBy: eventColumns[0], descending: true, empty: "No entry names it." });
  const asks = deviceRequests(name);
  const node = el("section", { "aria-label": `Device ${name}` },
    el("p", {}, el("a", { href: "#fleet" }, "All devices")), el("h2", {}, name), problem, now, asks.node, el("h3", {}, "Its work, the newest first"), rows.node, charts,
    el("div", { class: "two" }, el("div", {}, el("h3", {}, "Profile"), profile), el("div", {}, el("h3", {}, "Ledger events"), events.node)), log);

  async function update() {
    const view = store.devices.get(name);
    asks.update(view);
    if (view) draw(view);
    const mark = JSON.stringify([view?.record, store.run?.last_event]);
    if (isReading || mark === readFor) return;
    isReading = true;
    try {
      page = await read(`/api/devices/${encodeURIComponent(name)}`);
      readFor = mark;
      problem.hidden = true;
      drawPage();
    } catch (error) {
      problem.hidden = false;
      setText(problem, error.message);
    } finally {
      isReading = false;
    }
  }

  function draw(view) {
    const { record, live } = view;
    const most = record ? Math.max(record.budget_bytes, record.predicted_peak_bytes, record.measured_peak_bytes, 1) : 1;
    now.replaceChildren(
      el("p", {}, swatch(view.status), " ", el("b", {}, STATUS[view.status]), view.why ? `: ${view.why}` : ""),
      facts([
        ["capacity level", record?.level || "none yet"],
        ["budget", memory(record?.budget_bytes || live?.budget_bytes) || "no limit"],
        ["predicted peak", memory(record?.predicted_peak_bytes) || "-"],
        ["measured peak", memory(record?.measured_peak_bytes) || "-"],
        ["step predicted", milliseconds(record?.predicted_step_ms) || "-"],
        ["step measured", milliseconds(record?.step_ms) || "-"],
        ["reports", record ? `${whole(record.counts.reported)} of ${whole(record.counts.assigned)}` : "-"],
        ["refused", whole(record?.counts.refused ?? 0)],
        ["too late", whole(record?.counts.expired ?? 0)],
        ["set aside", whole(record?.counts.quarantined ?? 0)],
        ["reliability", record ? number(record.score, 2) : "-"],
        ["steps", live?.total_steps && view.status === "training" ? `${live.step ?? 0} of ${live.total_steps}` : "-"],
        ["temperature", heat(live) || "-"],
        ["power", power(live) || "-"],
        ["last heard", live ? clock(live.heard_at) : "-"],
        ["examples", live ? whole(live.num_examples ?? 0) : "-"],
      ]),
      record && record.round >= 0 ? el("figure", { class: "membar" }, bar(record, most),
        el("figcaption", {}, "Peak memory measured (filled) and predicted (upright line) against the budget (frame)")) : "");
  }

  function drawPage() {
    rows.update(page.assignments);
    events.update(page.events);
    const done = page.assignments.filter(entry => entry.step_ms).reverse();
    charts.replaceChildren(...(done.length > 1 ? [
      lines([{ name: "step", points: done.map(entry => [entry.round + 1, entry.step_ms]) }], { x: "round", y: "ms", caption: "Median time of a step", fromZero: true, format: value => milliseconds(value) }),
      lines([{ name: "measured", named: true, points: done.map(entry => [entry.round + 1, entry.measured_peak_bytes / 2 ** 20]) },
        { name: "predicted", named: true, points: done.map(entry => [entry.round + 1, entry.predicted_peak_bytes / 2 ** 20]), colour: "two" }],
      { x: "round", y: "MB (2^20 bytes)", caption: "Peak memory", fromZero: true, format: value => `${number(value, 1)} MB` }),
    ] : []));
    const known = page.profile;
    profile.replaceChildren(known ? pairs([
      ["board", known.board || known.cpu_model], ["processors", `${known.cpu_count}${known.cores?.length ? `: ${known.cores.map(group => `${group.count} x ${group.name || known.machine}`).join(", ")}` : ""}`],
      ["architecture", known.machine], ["system", [known.os_name, known.system].filter(Boolean).join(", ")], ["memory", memory(known.ram_bytes)],
      ["idle supervisor", memory(known.supervisor_idle_bytes)],
      ["idle trainer", Object.entries(known.trainer_idle_bytes ?? {}).map(([runtime, bytes]) => `${runtime} ${memory(bytes)}`).join(", ")],
      ["runtimes", Object.entries(known.runtimes ?? {}).map(([runtime, version]) => `${runtime} ${version}`).join(", ")],
      ["storage free", known.storage_free_bytes ? traffic(known.storage_free_bytes) : ""],
      ["link", known.link_bytes_per_s ? `${(known.link_bytes_per_s / 1e6).toFixed(1)} MB/s` : ""], ["Python", known.python],
      ["in the run since", moment(page.view.record?.joined_at)], ["agent", page.view.live?.agent_version], ["tags", page.view.live?.tags?.join(", ")],
      ["sent to it", page.traffic.filter(row => row.direction === "down").map(row => `${traffic(row.payload_bytes)} over ${row.scheme.toUpperCase()}`).join(", ")],
      ["sent by it", page.traffic.filter(row => row.direction === "up").map(row => `${traffic(row.payload_bytes)} over ${row.scheme.toUpperCase()}`).join(", ")],
    ]) : el("p", { class: "empty" }, "Its profile is not in the run's snapshot yet."));
    log.replaceChildren(el("h3", {}, "The end of its log"), page.log.length ? el("pre", { tabindex: "0", "aria-label": "Log" }, page.log.join("\n"))
      : el("p", { class: "empty" }, `Its log is on the device itself: apportion device logs ${name}`));
  }

  return { node, update, wants: ["devices", "run"] };
}
