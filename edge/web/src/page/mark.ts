/** The mark: a whole, and the portion taken from it. The same drawing as public/icon.svg. */

import { drawing } from "./element";

export function mark(): SVGElement {
  return drawing(
    "svg",
    { viewBox: "0 0 64 64", class: "mark", "aria-hidden": "true" },
    drawing("path", { class: "whole", d: "M29 12A23 23 0 1 0 52 35H32A3 3 0 0 1 29 32Z" }),
    drawing("path", {
      class: "portion",
      d: "M36 9.5A2.5 2.5 0 0 1 38.8 7A20 20 0 0 1 57 25.2A2.5 2.5 0 0 1 54.500 28H38.500A2.500 2.500 0 0 1 36 25.500Z",
    }),
  );
}
