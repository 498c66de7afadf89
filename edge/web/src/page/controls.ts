/** The few controls that every view is made of. Each is labelled, at least 44 px high and reached by keyboard. */

import { type Child, element, setText } from "./element";

let lastId = 0;

function newId(): string {
  lastId += 1;
  return `c${lastId}`;
}

export function card(title: string, ...children: Child[]): HTMLElement {
  const id = newId();
  return element("section.card", { "aria-labelledby": id }, element("h3", { id }, title), ...children);
}

export function button(
  text: string,
  onPress: () => void,
  kind: "main" | "plain" | "danger" = "plain",
): HTMLButtonElement {
  return element(`button.${kind}`, { type: "button", click: onPress }, text);
}

export interface Switch {
  readonly root: HTMLElement;
  set(isOn: boolean): void;
}

/** A switch with its label and a line below it. */
export function toggle(text: string, detail: string, onChange: (isOn: boolean) => void): Switch {
  const id = newId();
  const input = element("input.switch", {
    id,
    type: "checkbox",
    role: "switch",
    change: () => onChange(input.checked),
  });
  if (detail !== "") input.setAttribute("aria-describedby", `${id}-detail`);
  const words = element("span.words", {}, element("label", { for: id }, text));
  if (detail !== "") words.append(element("span.detail", { id: `${id}-detail` }, detail));
  const root = element("div.row", {}, words, input);
  return {
    root,
    set: (isOn) => {
      input.checked = isOn;
    },
  };
}

export interface Stepper {
  readonly root: HTMLElement;
  set(value: number, least: number, most: number): void;
}

/** A number with a button on either side. `format` says it in words, for eyes and for screen readers. */
export function stepper(
  text: string,
  step: number,
  format: (value: number) => string,
  onChange: (value: number) => void,
): Stepper {
  const id = newId();
  const shown = element("output.value", { id, "aria-live": "polite" });
  let [value, least, most] = [0, 0, 0];
  const less = element("button.round", { type: "button", "aria-label": `Less: ${text}` }, "−");
  const more = element("button.round", { type: "button", "aria-label": `More: ${text}` }, "+");
  const move = (by: number) => onChange(Math.min(most, Math.max(least, Math.round(value / step) * step + by)));
  less.addEventListener("click", () => move(-step));
  more.addEventListener("click", () => move(step));
  return {
    root: element(
      "div.row",
      { role: "group", "aria-label": text },
      element("span.words", {}, text),
      element("span.stepper", {}, less, shown, more),
    ),
    set: (next, low, high) => {
      [value, least, most] = [next, low, high];
      setText(shown, format(value));
      // Not `disabled`: a disabled button would drop the focus of whoever pressed it last.
      less.setAttribute("aria-disabled", String(value <= least));
      more.setAttribute("aria-disabled", String(value >= most));
    },
  };
}

export interface Fact {
  readonly root: HTMLElement;
  set(value: string): void;
}

/** One figure with its name, in a `dl.facts`. */
export function fact(name: string, isWide = false): Fact {
  const value = element("dd", {}, "–");
  return {
    root: element(isWide ? "div.all" : "div", {}, element("dt", {}, name), value),
    set: (text) => setText(value, text),
  };
}

/** A button that asks once more, in its own place, before it does what cannot be undone. */
export function confirmed(text: string, question: () => string, yes: string, onYes: () => void): HTMLElement {
  const root = element("div.confirmed");
  const ask = button(
    text,
    () => {
      const keep = button("Keep", () => close());
      const go = button(
        yes,
        () => {
          close();
          onYes();
        },
        "danger",
      );
      root.replaceChildren(
        element("div.question", { role: "group", "aria-label": question() }, element("p", {}, question()), go, keep),
      );
      keep.focus();
    },
    "danger",
  );
  const close = () => {
    root.replaceChildren(ask);
    ask.focus();
  };
  root.append(ask);
  return root;
}

export interface Field {
  readonly root: HTMLElement;
  readonly input: HTMLInputElement;
}

export function field(text: string, attributes: Readonly<Record<string, string>>): Field {
  const id = newId();
  const input = element("input.field", { id, autocomplete: "off", ...attributes });
  return { root: element("div.labelled", {}, element("label", { for: id }, text), input), input };
}
