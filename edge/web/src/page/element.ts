/** Elements made in one expression. Text is always text: no markup is ever parsed, which the CSP would not stop. */

export type Child = Node | string;
type Attributes = Readonly<Record<string, string | boolean | ((event: Event) => void)>>;

const SVG = "http://www.w3.org/2000/svg";

/** An element `name.class.class`. A function is a listener for the event called like its attribute. */
export function element<Name extends keyof HTMLElementTagNameMap>(
  selector: Name | `${Name}.${string}`,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Name] {
  const [name, ...classes] = selector.split(".") as [Name, ...string[]];
  const made = document.createElement(name);
  if (classes.length > 0) made.className = classes.join(" ");
  fill(made, attributes);
  made.append(...children);
  return made;
}

export function drawing(name: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const made = document.createElementNS(SVG, name);
  fill(made, attributes);
  made.append(...children);
  return made;
}

function fill(made: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, value);
  }
}

/** Sets the text only where it differs, so that a selection and a screen reader are left in peace. */
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes the children of `parent` one per item, and leaves them alone while the items are the same. */
export function setList<Item>(parent: Element, items: readonly Item[], make: (item: Item) => Node): void {
  const text = JSON.stringify(items);
  if (shown.get(parent) === text) return;
  shown.set(parent, text);
  parent.replaceChildren(...items.map(make));
}

const shown = new WeakMap<Element, string>();
