/** Joining by a link: what it means, and one button. */

import { button, card, field } from "../controls";
import { element, setText } from "../element";
import type { PageActions, View } from "../model";
import { canScan, scanner } from "../scanner";

const MEANING = [
  ["Your examples stay here", "Pictures, tables and recordings are kept and used on this phone only."],
  ["You set the limits", "Memory, battery, network: it trains only within what you allow."],
  ["Leave at any time", "One button removes this phone's key, data and everything stored."],
] as const;

export function joiningView(actions: PageActions): View {
  const who = element("strong");
  const host = element("strong");
  const join = button("Join", () => void actions.join(), "main");
  const stay = button("", () => void actions.stay());
  stay.classList.add("below");
  const invited = element(
    "div",
    {},
    element("p.lead", {}, "Lend some of this phone's time to train a model together with others."),
    element(
      "dl.pairs",
      {},
      element("div", {}, element("dt", {}, "Joins as"), element("dd", {}, who)),
      element("div", {}, element("dt", {}, "Coordinator"), element("dd", {}, host)),
    ),
    join,
    stay,
    element("p.detail", {}, "Joining makes a key that never leaves this phone. The link works once."),
  );

  const link = field("Link that you were given", { type: "url", placeholder: "https://…/join#…", inputmode: "url" });
  const form = element(
    "form",
    {
      submit: (event) => {
        event.preventDefault();
        void actions.invite(link.input.value);
      },
    },
    link.root,
    element("button.main", { type: "submit" }, "Continue"),
  );
  const uninvited = element(
    "div",
    {},
    element("p.lead", {}, "To take part, open the link or scan the code that you were given."),
    form,
  );
  const scan = scanner((text) => void actions.invite(text));
  void canScan().then((isPossible) => {
    if (isPossible) uninvited.append(scan.root);
  });

  const meaning = element(
    "ul.meaning",
    {},
    ...MEANING.map(([title, text]) => element("li", {}, element("strong", {}, title), element("span", {}, text))),
  );
  const root = element(
    "section.view",
    { id: "view-join", "aria-labelledby": "join-title" },
    element("h2", { id: "join-title" }, "Train together"),
    element("div.card", {}, invited, uninvited),
    card("What joining means", meaning),
  );
  return {
    root,
    show: (state) => {
      root.hidden = state.phase !== "invited" && state.phase !== "uninvited";
      invited.hidden = state.phase !== "invited";
      uninvited.hidden = state.phase !== "uninvited";
      if (root.hidden || invited.hidden === false) scan.stop();
      stay.hidden = state.membership === null;
      setText(stay, `Go on as ${state.membership?.device ?? ""} instead`);
      setText(who, state.invitation?.device ?? "");
      setText(host, state.invitation?.host ?? "");
      setText(join, state.isJoining ? "Joining…" : "Join");
      join.setAttribute("aria-disabled", String(state.isJoining || state.missing.length > 0));
    },
  };
}
