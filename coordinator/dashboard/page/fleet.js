// The fleet as it is: every device a cell, how many do what, and a table to filter and search.

import { colour, el, setText } from "./dom.js";
import { memory, milliseconds, whole } from "./format.js";
import { swatch } from "./plot.js";
import { store } from "./store.js";
import { table } from "./table.js";
import { EXPLAINED, STATUS } from "./words.js";

const GROUPS = [
  ...Object.keys(STATUS).map(name => ({ id: name, name: STATUS[name], is: view => view.status === name, hint: EXPLAINED[name], swatch: name })),
  { id: "hot", name: "Hot", is: view => view.is_hot, hint: "70 °C or more, slowed by heat, or waiting to cool down" },
  { id: "battery", name: "On battery", is: view => view.is_on_battery, hint: "not charging" },
  { id: "aside", name: "Set aside before", is: view => (view.record?.counts.quarantined ?? 0) > 0, hint: "an update of it is in quarantine" },
  { id: "over", name: "Over budget", is: view => isOver(view), hint: "it measured more memory than its budget" },
];

const isOver = view => Boolean(view.record && view.record.budget_bytes && view.record.measured_peak_bytes > view.record.budget_bytes);

export const deviceLink = name => el("a", { href: `#device/${encodeURIComponent(name)}` }, name);

const doing = view => {
  const live = view.live;
  const name = STATUS[view.status];
  if (view.status === "training" && live?.total_steps) return `${name} ${live.step ?? 0}/${live.total_steps}`;
  if (view.status === "waiting" && live?.waiting_for) return `${name}: ${live.waiting_for}`;
  return name;
};

const COLUMNS = [
  { name: "Device", text: view => view.device, sort: view => view.device, node: (view, text) => deviceLink(text) },
  { name: "State", text: doing, sort: view => STATUS[view.status], mark: view => view.status,
    node: (view, text) => el("span", {}, swatch(view.status), " ", text) },
  { name: "Why", text: view => view.why, sort: view => view.why },
  { name: "Level", text: view => view.record?.level ?? "", sort: view => view.record?.level ?? "" },
  { name: "Budget", number: true, wide: true, text: view => memory(budget(view)), sort: budget },
  { name: "Predicted", number: true, wide: true, text: view => memory(view.record?.predicted_peak_bytes), sort: view => view.record?.predicted_peak_bytes },
  { name: "Measured", number: true, wide: true, text: view => memory(view.record?.measured_peak_bytes), sort: view => view.record?.measured_peak_bytes, bad: isOver },
  { name: "Step", number: true, wide: true, text: view => milliseconds(view.record?.step_ms), sort: view => view.record?.step_ms },
  { name: "Reports", number: true, text: view => view.record ? `${view.record.counts.reported}/${view.record.counts.assigned}` : "",
    sort: view => view.record?.counts.reported },
  { name: "Heat", number: true, wide: true, text: view => heat(view.live), sort: view => view.live?.temperature_c, bad: view => view.is_hot },
  { name: "Power", wide: true, text: view => power(view.live), sort: view => view.live?.battery_percent },
];

function budget(view) {
  return view.record?.budget_bytes || view.live?.budget_bytes || 0;
}

export const heat = live => live?.temperature_c === null || live?.temperature_c === undefined ? "" : `${live.temperature_c.toFixed(0)} °C`;
export const power = live => {
  if (!live) return "";
  const level = live.battery_percent === null || live.battery_percent === undefined ? "" : `${live.battery_percent.toFixed(0)} %`;
  const source = live.charging === false ? "battery" : live.charging === true ? "charging" : "";
  return [source, level].filter(Boolean).join(" ");
};

export function fleet(options) {
  let chosen = options.get("show") ?? "all", words = options.get("search") ?? "";
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Show devices by state" });
  const buttons = new Map();
  const search = el("input", { type: "search", value: words, placeholder: "name, tag, level, board, why", oninput: () => { words = search.value; update(); } });
  const count = el("span", { class: "soft", role: "status" });
  const cells = grid(), now = el("p", { class: "soft" });
  const rows = table("Devices", COLUMNS, view => view.device, { sortBy: COLUMNS[0], empty: "No device matches." });
  const none = el("p", { class: "empty", hidden: true }, "No devices yet. A device shows here as soon as it has said hello to the coordinator.");

  function button(id, name, hint, mark) {
    const number = el("b");
    const node = el("button", { type: "button", title: hint, "aria-pressed": "false", "data-group": id, onclick: () => { chosen = id; update(); } },
      mark ? swatch(mark) : null, `${name} `, number);
    buttons.set(id, { node, number });
    chips.append(node);
  }
  button("all", "All", "every device");
  for (const group of GROUPS) button(group.id, group.name, group.hint, group.swatch);

  function matches(view) {
    if (!words) return true;
    const text = [view.device, view.why, view.record?.level, view.record?.board, view.live?.board, ...(view.live?.tags ?? [])].join(" ").toLowerCase();
    return words.toLowerCase().split(/\s+/).every(word => text.includes(word));
  }

  function update() {
    setText(now, store.is_running ? "What each device does now. A dark square in a cell: it is hot." : "No coordinator runs: what became of each device's last order.");
    const views = [...store.devices.values()];
    const counts = new Map([["all", views.length]]);
    for (const group of GROUPS) counts.set(group.id, 0);
    for (const view of views) for (const group of GROUPS) if (group.is(view)) counts.set(group.id, counts.get(group.id) + 1);
    for (const [id, { node, number }] of buttons) {
      setText(number, whole(counts.get(id)));
      node.hidden = id !== "all" && id !== chosen && counts.get(id) === 0;
      node.setAttribute("aria-pressed", String(id === chosen));
    }
    const group = GROUPS.find(each => each.id === chosen);
    const kept = views.filter(view => (!group || group.is(view)) && matches(view));
    setText(count, `${whole(kept.length)} of ${whole(views.length)} devices`);
    none.hidden = views.length > 0;
    rows.node.hidden = views.length === 0;
    const spoken = [...buttons].filter(([id, each]) => id in STATUS && !each.node.hidden).map(([id, each]) => `${STATUS[id]} ${each.number.textContent}`);
    cells.update(kept, `${kept.length} devices, one cell each. In all: ${spoken.join(", ")}. The table below has the same.`);
    rows.update(kept);
  }

  const node = el("section", { "aria-label": "Fleet" }, el("h2", {}, "Fleet"),
    now,
    chips, el("div", { class: "row" }, el("label", {}, "Search", search), count), none, cells.node, rows.node);
  return { node, update, wants: ["devices", "is_running"] };
}

/** A cell for each device: the whole fleet at a glance. */
function grid() {
  const canvas = el("canvas", { role: "img" });
  const tip = el("div", { class: "tip", hidden: true });
  const node = el("div", { class: "grid" }, canvas, tip);
  let views = [], size = 12, columns = 1;

  const at = event => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / size), y = Math.floor((event.clientY - box.top) / size);
    return x < columns ? views[y * columns + x] : undefined;
  };
  canvas.addEventListener("mousemove", event => {
    const view = at(event);
    tip.hidden = !view;
    if (!view) return;
    setText(tip, `${view.device}: ${doing(view)}${view.why ? `, ${view.why}` : ""}`);
    const box = canvas.getBoundingClientRect();
    const left = event.clientX - box.left;
    tip.style.left = `${Math.min(left + 12, Math.max(0, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", event => {
    const view = at(event);
    if (view) location.hash = `device/${encodeURIComponent(view.device)}`;
  });

  function draw() {
    const width = node.clientWidth;
    if (!width) return;
    size = views.length > 800 ? 11 : views.length > 200 ? 16 : views.length > 40 ? 22 : 30;
    columns = Math.max(1, Math.floor(width / size));
    const lines = Math.ceil(views.length / columns), ratio = devicePixelRatio || 1;
    canvas.width = columns * size * ratio;
    canvas.height = Math.max(1, lines * size * ratio);
    canvas.style.width = `${columns * size}px`;
    canvas.style.height = `${lines * size}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const fills = Object.fromEntries(Object.keys(STATUS).map(name => [name, colour(name)]));
    const edge = colour("cell-line"), mark = colour("ink");
    views.forEach((view, place) => {
      const x = (place % columns) * size, y = Math.floor(place / columns) * size, side = size - 2;
      pen.fillStyle = fills[view.status];
      pen.fillRect(x + 1, y + 1, side, side);
      if (view.status === "away" || view.status === "unasked") {
        pen.strokeStyle = edge;
        pen.strokeRect(x + 1.5, y + 1.5, side - 1, side - 1);
      }
      if (view.is_hot) {
        pen.fillStyle = mark;
        pen.fillRect(x + 1 + side / 3, y + 1 + side / 3, side / 3, side / 3);
      }
    });
  }
  new ResizeObserver(draw).observe(node);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {
    node,
    update(next, alternative) {
      views = [...next].sort((a, b) => a.device.localeCompare(b.device, "en", { numeric: true }));
      if (canvas.getAttribute("aria-label") !== alternative) canvas.setAttribute("aria-label", alternative);
      draw();
    },
  };
}
