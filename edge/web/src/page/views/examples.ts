/** The examples on this phone: adding, seeing what is there, deleting. */

import { cameraPanel } from "../cameraPanel";
import { button, card, confirmed, field } from "../controls";
import { element, setList, setText } from "../element";
import { keepingFocus } from "../focus";
import type { DataEntry, PageActions, PageState, View } from "../model";
import { motionPanel } from "../motionPanel";
import { bytesText, countText } from "../quantities";
import { classCounts, exampleCount } from "../words";

const KINDS = { arrays: "File", images: "Images", camera: "Camera", motion: "Motion" } as const;

export function examplesView(actions: PageActions): View {
  const busy = element("p.detail", { role: "status" });
  const wrong = element("p.wrong");
  const totals = element("p.lead", { tabindex: "-1" });
  const classes = element("ul.classes", { "aria-label": "Examples per class" });
  const entries = element("ul.entries", { "aria-label": "What was added" });
  let state: PageState | null = null;
  const question = () => `Delete ${countText(state === null ? 0 : exampleCount(state), "example")}?`;
  const deleteAll = confirmed("Delete all data", question, "Delete", () => void actions.deleteAllData());

  const panel = element("div.panel", { id: "adding" });
  let stopPanel = () => {};
  const choices = [
    ["Folder of images", () => picked(folderPanel(actions))],
    ["Images of one class", () => picked(imagesPanel(actions))],
    ["Table or NumPy file", () => picked(filePanel(actions))],
    ["Camera", () => cameraPanel(actions)],
    ["Motion", () => motionPanel(actions)],
  ] as const;
  const openers = choices.map(([name, open]) => {
    const opener = button(name, () => {
      const isOpen = opener.getAttribute("aria-expanded") === "true";
      stopPanel();
      for (const each of openers) each.setAttribute("aria-expanded", "false");
      panel.replaceChildren();
      stopPanel = () => {};
      if (isOpen) return;
      const opened = open();
      stopPanel = opened.stop;
      opener.setAttribute("aria-expanded", "true");
      panel.append(opened.root);
    });
    opener.setAttribute("aria-expanded", "false");
    opener.setAttribute("aria-controls", "adding");
    return opener;
  });

  const stored = card("On this phone", totals, wrong, classes, entries, deleteAll);
  const root = element(
    "section.view",
    { id: "view-data", "aria-labelledby": "data-title" },
    element("h2", { id: "data-title" }, "Data"),
    card("Add examples", element("div.choices", {}, ...openers), panel, busy),
    stored,
  );
  const entryRow = (entry: DataEntry) => {
    const remove = button("Delete", () => void actions.deleteData(entry.id));
    remove.setAttribute("aria-label", `Delete ${entry.name}`);
    return element(
      "li.row",
      {},
      element(
        "span.words",
        {},
        element("span.name", {}, entry.name),
        element(
          "span.detail",
          {},
          `${KINDS[entry.kind]}, ${countText(entry.count, "example")}, ${bytesText(entry.bytes)}`,
        ),
      ),
      remove,
    );
  };
  return {
    root,
    show: (next) => {
      state = next;
      root.hidden = next.phase !== "joined";
      const counts = Object.entries(classCounts(next)).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
      const most = Math.max(1, ...counts.map(([, count]) => count));
      const bytes = next.data.entries.reduce((sum, entry) => sum + entry.bytes, 0);
      const hasAny = next.data.entries.length > 0;
      setText(
        totals,
        hasAny
          ? `${countText(exampleCount(next), "example")} in ${countText(counts.length, "class", "classes")}, ${bytesText(bytes)}`
          : "Nothing yet. What you add is kept on this phone only.",
      );
      setText(wrong, next.data.error);
      wrong.hidden = next.data.error === "";
      setText(busy, next.data.busy);
      setList(classes, counts, ([label, count]) =>
        element(
          "li",
          {},
          element("span.name", {}, label),
          element("meter", { min: "0", max: String(most), value: String(count), "aria-label": label }),
          element("span.count", {}, String(count)),
        ),
      );
      keepingFocus(totals, () => {
        setList(entries, next.data.entries, entryRow);
        deleteAll.hidden = !hasAny;
      });
    },
  };
}

export interface Panel {
  readonly root: HTMLElement;
  stop(): void;
}

const picked = (root: HTMLElement): Panel => ({ root, stop: () => {} });

/** A file input that looks like a button: the input itself lies over it, so that keyboard and screen reader reach it. */
function picker(
  text: string,
  attributes: Readonly<Record<string, string>>,
  onFiles: (files: File[]) => void,
): HTMLElement {
  const input = element("input", {
    type: "file",
    ...attributes,
    change: () => {
      onFiles([...(input.files ?? [])]);
      input.value = "";
    },
  });
  return element("label.picker.main", {}, text, input);
}

function folderPanel(actions: PageActions): HTMLElement {
  return element(
    "div",
    {},
    element("p", {}, "A folder with one folder per class: cat/1.jpg, dog/2.jpg. The folder's name is the class."),
    picker("Choose a folder", { webkitdirectory: "", multiple: "" }, (files) => void actions.addFiles(files, "")),
  );
}

function imagesPanel(actions: PageActions): HTMLElement {
  const label = field("Class of these images", { type: "text", placeholder: "cat", maxlength: "60" });
  return element(
    "div",
    {},
    label.root,
    picker("Choose images", { accept: "image/*", multiple: "" }, (files) =>
      label.input.value.trim() === "" ? label.input.focus() : void actions.addFiles(files, label.input.value.trim()),
    ),
  );
}

function filePanel(actions: PageActions): HTMLElement {
  return element(
    "div",
    {},
    element("p", {}, "An .npz with x and y, or a .csv with a column called label, or the class in its last column."),
    picker(
      "Choose a file",
      { accept: ".npz,.csv,text/csv", multiple: "" },
      (files) => void actions.addFiles(files, ""),
    ),
  );
}
