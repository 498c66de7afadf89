// The model as a map: a row for each layer, a column for each round; the darker, the more updates trained it.

import { colour, el, setText } from "./dom.js";
import { deviceLink } from "./fleet.js";
import { plural, whole } from "./format.js";
import { read, store } from "./store.js";
import { table } from "./table.js";

const LINE = 26, MOST_COLUMNS = 120;

export function model() {
  let found = null, isReading = false, readFor = -1, chosen = "";
  const told = el("p", { class: "soft" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const canvas = el("canvas", { role: "img" }), tip = el("div", { class: "tip", hidden: true }), map = el("div", { class: "map grid" }, canvas, tip);
  const holder = el("div"), who = el("div");
  let rows = null, levelsKnown = "";
  const node = el("section", { "aria-label": "Model" }, el("h2", {}, "The model as a map"),
    el("p", { class: "soft" }, "Which layer was trained when, and by whom: updates that committed rounds count. A layer is a row, a round a column; the stronger the colour, the more updates trained it in that round. Choose a layer to see the devices."),
    problem, told, map, holder, who);

  async function follow() {
    if (isReading || readFor === store.run?.rounds_committed) return;
    isReading = true;
    try {
      do {
        found = await read("/api/model");
        setText(told, progress(found));
        if (node.isConnected) draw();
      } while (!found.is_complete && node.isConnected);
      if (found.is_complete) readFor = found.rounds_read_for = store.run?.rounds_committed;
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      setText(problem, `The map cannot be read: ${error.message}`);
    } finally {
      isReading = false;
    }
  }

  function columns(levels) {
    return [
      { name: "Layer", text: row => row.path, sort: row => row.place,
        node: (row, text) => el("button", { type: "button", onclick: () => choose(text) }, text) },
      { name: "Last trained", number: true, text: row => row.last_round < 0 ? "never" : `round ${row.last_round + 1}`, sort: row => row.last_round },
      { name: "Updates", number: true, text: row => whole(row.updates), sort: row => row.updates },
      { name: "Devices", number: true, text: row => whole(row.devices), sort: row => row.devices },
      ...levels.map(level => ({ name: level, wide: true, text: row => {
        const entry = row.levels[level];
        return entry ? `${entry.holds}${entry.updates ? `, ${plural(entry.updates, "update")} of ${plural(entry.devices, "device")}` : ""}` : "not held";
      } })),
    ];
  }

  async function choose(path) {
    chosen = path;
    try {
      const devices = await read(`/api/layer?path=${encodeURIComponent(path)}`);
      const cells = [
        { name: "Device", text: row => row.device, sort: row => row.device, node: (row, text) => deviceLink(text) },
        { name: "Updates that trained it", number: true, text: row => whole(row.updates), sort: row => row.updates },
        { name: "Last in", number: true, text: row => `round ${row.last_round + 1}`, sort: row => row.last_round },
      ];
      const list = table(`Devices that trained ${path}`, cells, row => row.device, { sortBy: cells[0], empty: "No counted update trained it." });
      list.update(devices);
      who.replaceChildren(el("h3", { tabindex: "-1" }, `${path}: trained by ${plural(devices.length, "device")}`), list.node);
      who.firstChild.focus();
    } catch (error) {
      who.replaceChildren(el("p", { class: "problem", role: "alert" }, `Its devices cannot be read: ${error.message}`));
    }
  }

  function matrix() {
    const last = Math.max(0, found.through_round), step = Math.max(1, Math.ceil((last + 1) / MOST_COLUMNS));
    const count = Math.ceil((last + 1) / step);
    const cells = found.layers.map(() => new Float64Array(count));
    for (const entry of found.rounds) for (const place of entry.layers) cells[place][Math.floor(entry.round / step)] += entry.updates / step;
    return { cells, step, count };
  }

  function draw() {
    if (!found) return;
    const isEmpty = !found.layers.length;
    map.hidden = holder.hidden = isEmpty;
    if (isEmpty) return setText(told, "No round is committed yet: nothing was trained.");
    const { cells, step, count } = matrix();
    const most = Math.max(1e-9, ...cells.map(line => Math.max(...line)));
    const width = Math.max(200, map.clientWidth || 600), names = Math.min(220, width * 0.35), side = Math.min(72, (width - names) / count);
    const height = found.layers.length * LINE + 22, ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    const ink = colour("ink"), soft = colour("soft"), fill = colour("one"), line = colour("line");
    found.layers.forEach((layer, place) => {
      const y = place * LINE;
      pen.fillStyle = ink;
      pen.fillText(fitted(pen, layer.path, names - 10), 0, y + LINE / 2);
      for (let column = 0; column < count; column++) {
        const x = names + column * side, share = cells[place][column] / most;
        pen.strokeStyle = line;
        if (side > 5) pen.strokeRect(x + 0.5, y + 2.5, side - 1, LINE - 5);
        if (!share) continue;
        pen.globalAlpha = 0.2 + 0.8 * share;
        pen.fillStyle = fill;
        pen.fillRect(x, y + 2, Math.max(1, side - (side > 5 ? 1 : 0)), LINE - 4);
        pen.globalAlpha = 1;
      }
    });
    pen.fillStyle = soft;
    const foot = found.layers.length * LINE + 12, end = String(found.through_round + 1);
    pen.fillText("round 1", names, foot);
    if (count * side > 90) pen.fillText(end, names + count * side - pen.measureText(end).width, foot);
    canvas.setAttribute("aria-label", `${found.layers.length} layers by ${found.through_round + 1} rounds; the table below says how often each was trained.`);
    canvas.onmousemove = event => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - names) / side), place = Math.floor((event.clientY - box.top) / LINE);
      const layer = found.layers[place];
      tip.hidden = !layer || column < 0 || column >= count;
      if (tip.hidden) return;
      const first = column * step, until = Math.min(found.through_round, first + step - 1);
      const here = found.rounds.filter(entry => entry.round >= first && entry.round <= until && entry.layers.includes(place));
      const by = {};
      for (const entry of here) by[entry.level] = (by[entry.level] ?? 0) + entry.updates;
      const words = Object.entries(by).map(([level, updates]) => `${updates} ${level}`).join(", ") || "not trained";
      setText(tip, `${layer.path}, round ${first + 1}${until > first ? ` to ${until + 1}` : ""}: ${words}`);
      tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth))}px`;
      tip.style.top = `${event.clientY - box.top + 18}px`;
    };
    canvas.onmouseleave = () => { tip.hidden = true; };
    canvas.onclick = event => {
      const layer = found.layers[Math.floor((event.clientY - canvas.getBoundingClientRect().top) / LINE)];
      if (layer) choose(layer.path);
    };
    const levels = [...new Set(found.layers.flatMap(layer => Object.keys(layer.levels)))].sort();
    if (!rows || levelsKnown !== levels.join("\n")) {
      levelsKnown = levels.join("\n");
      rows = table("Layers", columns(levels), row => row.path);
      holder.replaceChildren(el("h3", {}, "Layers, and how each capacity level holds them"), rows.node);
    }
    rows.update(found.layers.map((layer, place) => ({ ...layer, place })));
  }

  const progress = map_ => {
    const updates = map_.rounds.reduce((sum, entry) => sum + (entry.layers.length ? entry.updates : 0), 0);
    return `${plural(map_.layers.length, "layer")}, ${plural(map_.through_round + 1, "round")}, ${plural(updates, "counted update")}${map_.is_complete ? "" : "; reading further rounds"}.`;
  };

  new ResizeObserver(() => draw()).observe(map);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return { node, update: follow, wants: ["run"] };
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 3 && pen.measureText(`…${text.slice(-end)}`).width > width) end--;
  return `…${text.slice(-end)}`;
}
