import { expect, test } from "vitest";
import { FIRST_STATE, type PageState, type TrainingState } from "../../src/page/model";
import { classCounts, exampleCount, headline, kindText, problemWords, sentence } from "../../src/page/words";

const ENTRY = { id: "1", name: "a", kind: "arrays", count: 5, bytes: 10, labels: { cat: 3, dog: 2 } } as const;

function joined(training: Partial<TrainingState>, more: Partial<PageState> = {}): PageState {
  return {
    ...FIRST_STATE,
    phase: "joined",
    data: { entries: [ENTRY, { ...ENTRY, id: "2", count: 1, labels: { cat: 1 } }], error: "", busy: "" },
    training: { ...FIRST_STATE.training, connection: "connected", ...training },
    ...more,
  };
}

test("headline tells the reason with its values while it waits", () => {
  const words = headline(
    joined({ activity: "waiting", waitingFor: "battery", reason: "battery at 18 %, goes on at 23 %" }),
  );
  expect(words).toEqual({
    title: "Waiting: battery low",
    detail: "Battery at 18\u00a0%, goes on at 23\u00a0%.",
    tone: "waiting",
  });
});

test("headline of a condition it does not know still tells the reason", () => {
  expect(headline(joined({ activity: "waiting", waitingFor: "moon", reason: "no moon" }))).toMatchObject({
    title: "Waiting",
    detail: "No moon.",
  });
});

test.each([
  [joined({}), "Ready"],
  [joined({ connection: "offline" }), "Offline"],
  [joined({ connection: "connecting" }), "Connecting"],
  [joined({ connection: "denied", activity: "training" }), "No longer admitted"],
  [joined({ activity: "training" }), "Training"],
  [joined({ activity: "training" }, { wantsTraining: false }), "Stopped by you"],
  [joined({ activity: "elsewhere" }), "Open in another tab"],
  [joined({}, { data: { entries: [], error: "", busy: "" } }), "No examples yet"],
  [joined({}, { missing: ["WebAssembly"] }), "This browser cannot train"],
])("headline %#", (state, title) => {
  expect(headline(state).title).toBe(title);
});

test("headline of training offline says that the result is sent later", () => {
  expect(headline(joined({ activity: "training", connection: "offline" })).detail).toContain("sent later");
});

test("counts add up over what was added", () => {
  expect(classCounts(joined({}))).toEqual({ cat: 4, dog: 2 });
  expect(exampleCount(joined({}))).toBe(6);
});

test("problemWords prefers the library's hint, but not commands of the coordinator", () => {
  expect(problemWords({ code: "store-full", message: "m", hint: "free 3 MB" }).next).toBe("Free 3\u00a0MB.");
  expect(problemWords({ code: "token-used", message: "m", hint: "apportion ca token X" }).next).toContain("new link");
  expect(problemWords({ code: "never-heard-of", message: "m", hint: "" }).title).toBe("Something went wrong");
});

test("sentence has a capital and one full stop", () => {
  expect(sentence(" why not? ")).toBe("Why not?");
  expect(sentence("so")).toBe("So.");
  expect(sentence("https://host refused")).toBe("https://host refused.");
  expect(sentence("")).toBe("");
});

test("words that others make up are no entries of our tables", () => {
  for (const made of ["constructor", "toString", "__proto__", "hasOwnProperty"]) {
    expect(problemWords({ code: made, message: "m", hint: "" }).title).toBe("Something went wrong");
    expect(kindText(made)).toBe(made);
    expect(headline(joined({ activity: "waiting", waitingFor: made, reason: "r" })).title).toBe("Waiting");
  }
});
