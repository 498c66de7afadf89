/** What leaves this phone, in plain words and as it happens. */

import { card } from "../controls";
import { element, setList, setText } from "../element";
import type { TrafficRow, View } from "../model";
import { bytesText, clockText } from "../quantities";
import { kindText } from "../words";

const SENT = [
  "The trained weights of the model's part that this phone holds",
  "How many examples it trained on, and which classes occur when that is asked for",
  "Loss and accuracy, step times, memory in use",
  "What the device can do: memory budget, cores, battery, kind of browser",
];
const KEPT = [
  "Your examples: pictures, tables, recordings",
  "The label of any single example",
  "Names of files and folders",
  "This phone's private key",
];
const ROWS = 40;

export function leavingView(): View {
  const sent = element("strong");
  const received = element("strong");
  const rows = element("tbody");
  const table = element(
    "table",
    {},
    element("caption.unseen", {}, "Latest messages, newest first"),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        element("th", { scope: "col" }, "Time"),
        element("th", { scope: "col" }, "Message"),
        element("th.number", { scope: "col" }, "Size"),
      ),
    ),
    rows,
  );
  const nothing = element("p.detail", {}, "Nothing yet.");
  const log = element("div.log", { tabindex: "0", role: "region", "aria-label": "Latest messages" }, table, nothing);
  const list = (kind: string, texts: readonly string[]) =>
    element(`ul.${kind}` as "ul", {}, ...texts.map((text) => element("li", {}, text)));
  const root = element(
    "section.view",
    { id: "view-leaving", "aria-labelledby": "leaving-title" },
    element("h2", { id: "leaving-title" }, "What leaves this phone"),
    card("Sent to the coordinator", list("sends", SENT)),
    card("Never sent", list("keeps", KEPT)),
    card("As it happens", element("p", {}, sent, " sent, ", received, " received"), log),
  );
  const row = (entry: TrafficRow) =>
    element(
      "tr",
      {},
      element("td", {}, clockText(entry.at)),
      element(
        "td",
        {},
        element("span.way", { "aria-hidden": "true" }, entry.isSent ? "↑" : "↓"),
        element("span.unseen", {}, entry.isSent ? "sent: " : "received: "),
        kindText(entry.kind),
        entry.count > 1 ? `\u00a0×\u00a0${entry.count.toLocaleString("en")}` : "",
      ),
      element("td.number", {}, bytesText(entry.bytes)),
    );
  return {
    root,
    show: (state) => {
      root.hidden = state.phase !== "joined";
      setText(sent, bytesText(state.traffic.sentBytes));
      setText(received, bytesText(state.traffic.receivedBytes));
      setList(rows, state.traffic.rows.slice(0, ROWS), row);
      table.hidden = state.traffic.rows.length === 0;
      nothing.hidden = !table.hidden;
    },
  };
}
