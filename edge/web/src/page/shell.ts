/** The page around the views: header, tabs, problems, and the one place where state changes are spoken. */

import { button } from "./controls";
import { drawing, element, setText } from "./element";
import { keepingFocus } from "./focus";
import { mark } from "./mark";
import type { Connection, PageActions, PageState, View } from "./model";
import { deviceView } from "./views/device";
import { examplesView } from "./views/examples";
import { joiningView } from "./views/joining";
import { leavingView } from "./views/leaving";
import { trainingView } from "./views/training";
import { headline, problemWords, sentence } from "./words";

const TABS = [
  ["training", "Train", "M4 15l4-5 4 3 4-7 4 4"],
  ["data", "Data", "M4 7h16M4 12h16M4 17h16"],
  ["device", "Device", "M8 3h8a1 1 0 0 1 1 1v16a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1zM11 18h2"],
  ["leaving", "What leaves", "M12 16V4M7 9l5-5 5 5M5 20h14"],
] as const;

const CONNECTIONS: Readonly<Record<Connection, string>> = {
  connected: "Connected",
  connecting: "Connecting",
  offline: "Offline",
  denied: "Refused",
};

/** Builds the page into `body`; the function given back shows a state. */
export function buildShell(body: HTMLElement, actions: PageActions): (state: PageState) => void {
  const connection = element("span.connection");
  const problem = problemCard(actions);
  const spoken = element("p.unseen", { role: "status", "aria-live": "polite" });
  const views: View[] = [
    joiningView(actions),
    trainingView(actions),
    examplesView(actions),
    deviceView(actions),
    leavingView(),
  ];
  const links = TABS.map(([id, name, path]) =>
    element(
      "a",
      { href: `#${id}` },
      drawing("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, drawing("path", { d: path })),
      element("span", {}, name),
    ),
  );
  const tabs = element("nav.tabs", { "aria-label": "Views" }, ...links);
  const main = element(
    "main",
    { id: "main", tabindex: "-1" },
    problem.root,
    element("div.views", {}, ...views.map((view) => view.root)),
  );
  const top = element("header", {}, element("h1", {}, mark(), "Apportion"), connection);
  body.replaceChildren(top, main, tabs, spoken);

  const open = () => {
    const asked = location.hash.slice(1);
    const tab = TABS.some(([id]) => id === asked) ? asked : "training";
    main.dataset.view = tab;
    for (const link of links) {
      if (link.hash === `#${tab}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    scrollTo(0, 0);
  };
  addEventListener("hashchange", open);
  open();

  let said = "";
  return (state) => {
    body.dataset.phase = state.phase;
    keepingFocus(main, () => {
      for (const view of views) view.show(state);
      problem.show(state);
      tabs.hidden = state.phase !== "joined";
    });
    connection.hidden = state.phase !== "joined";
    setText(connection, CONNECTIONS[state.training.connection]);
    connection.dataset.connection = state.training.connection;
    // Spoken once per change of state, not per step: only the headline, and the reason when it waits.
    const words = headline(state);
    const news = words.tone === "waiting" || words.tone === "bad" ? `${words.title}. ${words.detail}` : words.title;
    if (state.phase === "joined" && news !== said) {
      said = news;
      setText(spoken, news);
    }
  };
}

function problemCard(actions: PageActions): View {
  const title = element("h2");
  const message = element("p");
  const next = element("p.next");
  const root = element(
    "div.problem",
    { role: "alert" },
    title,
    message,
    next,
    button("Close", () => actions.dismissProblem()),
  );
  return {
    root,
    show: ({ problem }) => {
      root.hidden = problem === null;
      if (problem === null) return;
      const words = problemWords(problem);
      setText(title, words.title);
      setText(message, sentence(problem.message));
      setText(next, words.next);
    },
  };
}
