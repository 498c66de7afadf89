// Elements with properties and children; text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

export const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

export function pairs(entries) {
  return el("dl", { class: "pairs" }, entries.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
}

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

let spokenNode = null;
export function say(text) {
  spokenNode ??= document.getElementById("spoken");
  spokenNode.textContent = text;
}
