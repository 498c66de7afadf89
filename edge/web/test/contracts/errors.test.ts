import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import * as errors from "../../src/contracts/errors";

/** What the Python tree says: class -> code. */
function pythonCodes(): Map<string, string> {
  const source = readFileSync(new URL("../../../contracts/errors.py", import.meta.url), "utf8");
  const classes = source.matchAll(/^class (\w+)\([\s\S]*?^ {4}code = "([a-z-]+)"/gm);
  return new Map(Array.from(classes, (found) => [found[1] as string, found[2] as string]));
}

/** What no class stands for on the Python side: its agents undo every encoding and refuse a replay in one place. */
const OURS = ["UnsupportedEncoding", "ReplayedOrder"];

const MADE: errors.ApportionError[] = [
  new errors.ApportionError("x"),
  new errors.ConfigError(["x"]),
  new errors.PlanError("x"),
  new errors.ParityError("x"),
  new errors.ArtifactCorrupt("x"),
  new errors.DataError("x"),
  new errors.DeviceRefused("x"),
  new errors.UpdateRejected("x"),
  new errors.MessageRejected("x"),
  new errors.UnsupportedVersion("x"),
  new errors.UnsupportedEncoding("x"),
  new errors.ReplayedOrder("x"),
  new errors.SignatureRejected("x"),
  new errors.StoreFull("x"),
  new errors.BrokerUnreachable("x"),
  new errors.AccessDenied("x"),
  new errors.DeadlineExpired("x"),
];

test("every class has the code of its Python namesake", () => {
  const codes = pythonCodes();
  expect(codes.size).toBeGreaterThan(15);
  for (const error of MADE.filter(({ name }) => !OURS.includes(name))) {
    expect([error.name, error.code]).toEqual([error.name, codes.get(error.name)]);
  }
});

test("every class is in this test", () => {
  const classes = Object.keys(errors).filter((name) => name !== "EnrolmentFailed");
  expect(MADE.map(({ name }) => name).sort()).toEqual(classes.sort());
});

test("an error says what to do next and what it came from", () => {
  const cause = new Error("inner");
  const error = new errors.ConfigError(["LINK: a", "LINK: b"], { hint: "copy it", cause });
  expect(error.message).toBe("2 problems in the configuration:\n  LINK: a\n  LINK: b");
  expect([error.hint, error.cause, error instanceof errors.ApportionError]).toEqual(["copy it", cause, true]);
  expect(new errors.EnrolmentFailed("token-used", "no").code).toBe("token-used");
});
