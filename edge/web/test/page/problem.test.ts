import { expect, test } from "vitest";
import { parseClaimLink } from "../../src/contracts/claims";
import { DataError } from "../../src/contracts/errors";
import { problemOf } from "../../src/page/problem";

test("problemOf a bad link says what is wrong in one sentence", () => {
  let problem = problemOf(null);
  try {
    parseClaimLink("http://example.org/elsewhere");
  } catch (error) {
    problem = problemOf(error);
  }
  expect(problem.code).toBe("bad-config");
  expect(problem.message).toBe("it is not https://host:port/join#...");
});

test("problemOf keeps code and hint, and takes anything", () => {
  expect(problemOf(new DataError("x is not finite", { hint: "clean it" }))).toEqual({
    code: "bad-data",
    message: "x is not finite",
    hint: "clean it",
  });
  expect(problemOf("odd")).toEqual({ code: "error", message: "odd", hint: "" });
});
