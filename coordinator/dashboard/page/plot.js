// Small plots as SVG: axes from sensible bounds, with units, gridlines and a text alternative.

import { el, svg } from "./dom.js";

const WIDTH = 560, HEIGHT = 260, LEFT = 62, RIGHT = 14, TOP = 14, BOTTOM = 42;
export const COLOURS = ["one", "two", "three", "four", "five", "bad"];

/** Round numbers from `low` to `high`, about `count` of them. */
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(each => each >= rough - 1e-12);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

/** Bounds that are multiples of a tick: from zero for amounts, around the values for scores. */
export function bounds(values, { fromZero = false } = {}) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (!Number.isFinite(low)) return [0, 1];
  if (fromZero) low = Math.min(0, low);
  if (high === low) [low, high] = fromZero ? [0, high || 1] : [low - 0.5, high + 0.5];
  const marks = ticks(low, high), step = marks.length > 1 ? marks[1] - marks[0] : high - low;
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

const short = value => {
  const size = Math.abs(value);
  if (size >= 10000) return value.toLocaleString("en");
  return String(Number(value.toPrecision(4)));
};

function frame(xs, ys, xName, yName, wholeX) {
  const [x0, x1] = xs, [y0, y1] = ys;
  const at = (x, y) => [
    LEFT + (x1 === x0 ? 0.5 : (x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT),
    HEIGHT - BOTTOM - (y1 === y0 ? 0.5 : (y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM),
  ];
  const marksX = ticks(x0, x1, 6).filter(tick => !wholeX || Number.isInteger(tick));
  const parts = [
    ...ticks(y0, y1).map(tick => {
      const [, y] = at(x0, tick);
      return [svg("path", { d: `M${LEFT} ${y}H${WIDTH - RIGHT}`, stroke: "var(--line)" }),
        svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, short(tick))];
    }).flat(),
    ...(marksX.length ? marksX : [x0]).map(tick => {
      const [x] = at(tick, y0);
      return svg("text", { x, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(tick));
    }),
    svg("path", { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, fill: "none", stroke: "var(--cell-line)" }),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xName),
    svg("text", { x: 14, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(TOP + HEIGHT - BOTTOM) / 2})` }, yName),
  ];
  return { at, parts };
}

const figure = (drawn, caption, alternative, series) => el("figure", {},
  svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": alternative }, drawn),
  series.length > 1 || series[0]?.named ? el("ul", { class: "legend" }, series.map((each, place) =>
    el("li", {}, swatch(each.colour ?? COLOURS[place % COLOURS.length]), `${each.name}${each.last ? `: ${each.last}` : ""}`))) : null,
  el("figcaption", {}, caption));

export function swatch(name) {
  const box = el("span", { class: "swatch", "aria-hidden": "true" });
  box.style.background = `var(--${name})`;
  return box;
}

const MOST = 400;

/** series: [{ name, points: [[x, y]], colour? }] */
export function lines(series, { x, y, caption, fromZero = false, format = short }) {
  const filled = series.filter(each => each.points.length);
  if (!filled.length) return el("figure", {}, el("p", { class: "empty" }, "No figures yet."), el("figcaption", {}, caption));
  const all = filled.flatMap(each => each.points);
  const xs = [Math.min(...all.map(point => point[0])), Math.max(...all.map(point => point[0]))];
  const { at, parts } = frame(xs, bounds(all.map(point => point[1]), { fromZero }), x, y, true);
  const drawn = filled.flatMap((each, place) => {
    const stroke = `var(--${each.colour ?? COLOURS[series.indexOf(each) % COLOURS.length]})`;
    const step = Math.ceil(each.points.length / MOST);
    const points = each.points.filter((_, n) => n % step === 0 || n === each.points.length - 1).map(point => [at(...point), point]);
    const path = points.map(([[px, py]], n) => `${n ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    const dots = points.length > 40 ? [] : points.map(([[px, py], [a, b]]) =>
      svg("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: 3, fill: stroke }, svg("title", {}, `${each.name}, ${x} ${a}: ${format(b)}`)));
    return [svg("path", { d: path, fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": each.isDashed || place > 5 ? "6 4" : null }), ...dots];
  });
  for (const each of filled) each.last = format(each.points.at(-1)[1]);
  const told = filled.map(each => `${each.name}: from ${format(each.points[0][1])} to ${each.last}`).join("; ");
  return figure([...parts, ...drawn], caption, `${caption}. ${told}.`, series);
}

/** points: [{ x, y, title }]; a diagonal shows where both are equal. */
export function scatter(points, { x, y, caption, colour = "one" }) {
  if (!points.length) return el("figure", {}, el("p", { class: "empty" }, "No figures yet."), el("figcaption", {}, caption));
  const both = bounds(points.flatMap(point => [point.x, point.y]));
  const { at, parts } = frame(both, both, x, y, false);
  const [ax, ay] = at(both[0], both[0]), [bx, by] = at(both[1], both[1]);
  const dots = new Map();
  for (const point of points) {
    const [px, py] = at(point.x, point.y), place = `${px.toFixed(0)} ${py.toFixed(0)}`;
    dots.has(place) ? dots.get(place).push(point) : dots.set(place, [point]);
  }
  const drawn = [...dots].map(([place, here]) => {
    const [px, py] = place.split(" ");
    const names = here.length > 3 ? `${here.length} devices` : here.map(each => each.title).join(", ");
    return svg("circle", { cx: px, cy: py, r: Math.min(8, 3 + Math.log2(here.length)), fill: `var(--${colour})`, "fill-opacity": 0.7 }, svg("title", {}, names));
  });
  const over = points.filter(point => point.y > point.x).length;
  return figure([...parts, svg("path", { d: `M${ax} ${ay}L${bx} ${by}`, stroke: "var(--cell-line)", "stroke-dasharray": "4 4" }), ...drawn],
    caption, `${caption}. ${points.length} devices; ${over} measured more than predicted.`, []);
}
