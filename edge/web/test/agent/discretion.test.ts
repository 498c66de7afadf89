import { expect, test } from "vitest";
import { NO_EXAMPLES, toldDataError, toldRefusal } from "../../src/agent/discretion";

const REFUSAL = {
  assignment_id: "a",
  reason: "cat/me.jpg: 3 channels",
  needed_bytes: 0,
  budget_bytes: 0,
  peak_bytes: 0,
};

test("a reason that may name files is not told, that there are no examples is", () => {
  expect(toldDataError("cat/me.jpg: is not a readable image")).not.toContain("me.jpg");
  expect(toldDataError("")).toBe("");
  expect(toldDataError(NO_EXAMPLES)).toBe(NO_EXAMPLES);
});

test("refusals for other reasons are told as they are", () => {
  expect(toldRefusal({ ...REFUSAL, code: "bad-data" }).reason).not.toContain("cat");
  expect(toldRefusal({ ...REFUSAL, code: "refused" }).reason).toBe(REFUSAL.reason);
});
