// A table that stays quick with thousands of rows: only those in view are in the page, and of them only cells that changed
// are written, so that a link keeps the focus while figures move.

import { el } from "./dom.js";

const ROW = 35;
const WHOLE = 60;
const MARGIN = 12;

/**
 * columns: [{ name, text(row), node?(row, text), sort?(row), number, wide, bar, bad?(row) }]
 * key(row): a row's identity.
 */
export function table(label, columns, key, { sortBy = null, descending = false, empty = "Nothing to show." } = {}) {
  let rows = [], sorted = [], by = sortBy, isDown = descending;
  const shown = new Map();
  const top = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td", { colspan: columns.length }));
  const bottom = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td", { colspan: columns.length }));
  const body = el("tbody");
  const heads = columns.map(column => {
    const head = el("th", { scope: "col", class: classes(column) });
    if (column.sort || column.number) {
      head.append(el("button", { type: "button", onclick: () => sortOn(column) }, column.name));
    } else head.append(column.name);
    return head;
  });
  const grid = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, heads)), body);
  const nothing = el("p", { class: "empty", hidden: true }, empty);
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label, onscroll: () => draw() }, grid);
  const node = el("div", {}, nothing, scroll);

  function sortOn(column) {
    isDown = by === column ? !isDown : Boolean(column.number);
    by = column;
    sort();
    draw(true);
  }

  const value = column => column.sort ?? column.text;

  function sort() {
    sorted = rows;
    if (by) {
      const of = value(by), sign = isDown ? -1 : 1;
      sorted = rows.map(row => [of(row), row]).sort(([a], [b]) => {
        const isNoA = a === null || a === undefined || a === "", isNoB = b === null || b === undefined || b === "";
        if (isNoA || isNoB) return isNoA - isNoB;
        return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      }).map(([, row]) => row);
    }
    heads.forEach((head, place) => {
      if (columns[place] === by) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function line(row) {
    const name = key(row);
    let known = shown.get(name);
    if (!known) {
      known = { tr: el("tr", { "data-key": name }), cells: columns.map(column => el("td", { class: classes(column) })), texts: [] };
      known.tr.append(...known.cells);
      shown.set(name, known);
    }
    columns.forEach((column, place) => {
      const text = column.text(row), isBad = Boolean(column.bad?.(row));
      const mark = `${text}|${isBad}|${column.mark?.(row) ?? ""}`;
      if (known.texts[place] === mark) return;
      known.texts[place] = mark;
      const cell = known.cells[place];
      cell.replaceChildren(column.node ? column.node(row, text) : text);
      if (!column.node && text.length > 30) cell.title = text;
      cell.classList.toggle("bad", isBad);
    });
    return known.tr;
  }

  function draw() {
    const isWhole = sorted.length <= WHOLE;
    const first = isWhole ? 0 : Math.max(0, Math.floor(scroll.scrollTop / ROW) - MARGIN);
    const last = isWhole ? sorted.length : Math.min(sorted.length, first + Math.ceil(560 / ROW) + 2 * MARGIN);
    const visible = sorted.slice(first, last);
    const names = new Set(visible.map(key));
    const lines = visible.map(line);
    if (!isWhole) lines.forEach((tr, place) => tr.setAttribute("aria-rowindex", first + place + 2));
    top.firstChild.style.height = `${first * ROW}px`;
    bottom.firstChild.style.height = `${(sorted.length - last) * ROW}px`;
    const wanted = isWhole ? lines : [top, ...lines, bottom];
    // Only what has to move is moved: a row that is moved loses the focus.
    let at = body.firstChild;
    for (const tr of wanted) {
      if (tr === at) at = at.nextSibling;
      else body.insertBefore(tr, at);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    for (const name of shown.keys()) if (!names.has(name)) shown.delete(name);
    grid.setAttribute("aria-rowcount", sorted.length + 1);
  }

  return {
    node,
    update(next) {
      rows = next;
      nothing.hidden = rows.length > 0;
      scroll.hidden = rows.length === 0;
      sort();
      draw();
    },
  };
}

const classes = column => [column.number && "number", column.wide && "wide", column.bar && "bar"].filter(Boolean).join(" ") || null;
