/** The loss as a line: small, live, without a library. */

import { drawing, element, setText } from "./element";
import { lossText } from "./quantities";

export const WIDTH = 320;
export const HEIGHT = 96;
const POINTS = 160;
const MARGIN = 4;

export interface LossChart {
  readonly root: HTMLElement;
  /** `share` of the steps is done, from 0 to 1. */
  show(losses: readonly number[], share: number): void;
}

/** At most `count` losses: the mean of each of as many equal stretches. Losses that are not finite are left out. */
export function thinned(losses: readonly number[], count: number): number[] {
  const finite = losses.filter(Number.isFinite);
  if (finite.length <= count) return finite;
  return Array.from({ length: count }, (_, i) => {
    const stretch = finite.slice(
      Math.floor((i * finite.length) / count),
      Math.floor(((i + 1) * finite.length) / count),
    );
    return stretch.reduce((sum, loss) => sum + loss, 0) / stretch.length;
  });
}

/** Path data of the line; x runs to the `share` of the steps that is done, y between the least and the greatest loss. */
export function linePath(losses: readonly number[], share: number): string {
  const points = thinned(losses, POINTS);
  if (points.length === 0) return "";
  const [least, most] = [Math.min(...points), Math.max(...points)];
  const width = (WIDTH - 2 * MARGIN) * Math.min(1, share);
  const spread = most - least || 1;
  return points
    .map((loss, i) => {
      const x = MARGIN + (points.length === 1 ? width : (i * width) / (points.length - 1));
      const y = MARGIN + (1 - (loss - least) / spread) * (HEIGHT - 2 * MARGIN);
      return `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    })
    .join("");
}

export function lossChart(): LossChart {
  const line = drawing("path", { class: "line" });
  const area = drawing("path", { class: "area" });
  const dot = drawing("circle", { class: "dot", r: "4" });
  const picture = drawing(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Loss", class: "chart" },
    drawing("path", { class: "floor", d: `M0 ${HEIGHT - 1}H${WIDTH}` }),
    area,
    line,
    dot,
  );
  const latest = element("strong", {}, "–");
  const range = element("span.detail");
  const root = element(
    "figure.loss",
    {},
    element("figcaption", {}, element("span", {}, "Loss ", latest), range),
    picture,
  );
  return {
    root,
    show: (losses, share) => {
      const last = losses.at(-1);
      root.hidden = last === undefined;
      if (last === undefined) return;
      const path = linePath(losses, share);
      line.setAttribute("d", path);
      const end = path.slice(path.lastIndexOf(losses.length > 1 ? "L" : "M") + 1).split(" ");
      const [x = "0", y = "0"] = end;
      area.setAttribute("d", path === "" ? "" : `${path}L${x} ${HEIGHT}L${MARGIN} ${HEIGHT}Z`);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      setText(latest, lossText(last));
      setText(range, losses.length > 1 ? `began at ${lossText(losses[0] as number)}` : "");
      picture.setAttribute("aria-label", `Loss, from ${lossText(losses[0] as number)} to ${lossText(last)}`);
    },
  };
}
