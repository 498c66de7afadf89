import { expect, test } from "vitest";
import { StatusBoard } from "../../src/agent/status";
import { lastSeen, newProblem, trafficOf, trainingOf, trainingSince } from "../../src/page/agentView";
import { FIRST_STATE } from "../../src/page/model";

test("what the agent tells is what the page shows", () => {
  const board = new StatusBoard();
  board.set({ state: "training", round: 4, connection: "connected" });
  board.progress({ step: 1, totalSteps: 3, loss: 2.5 });
  board.progress({ step: 2, totalSteps: 3, loss: 2.25, stepMs: 31, peakBytes: 7_000_000 });
  board.passed(true, "hello", 100);
  board.passed(true, "heartbeat", 10);
  board.passed(true, "heartbeat", 10);
  const training = trainingOf(board.current, true);
  expect(training).toMatchObject({ activity: "training", round: 4, step: 2, totalSteps: 3, losses: [2.5, 2.25] });
  expect(training).toMatchObject({ stepMs: 31, usedBytes: 7_000_000 });
  const traffic = trafficOf(board.current);
  expect(traffic.sentBytes).toBe(120);
  expect(traffic.rows.map(({ kind, count, bytes }) => [kind, count, bytes])).toEqual([
    ["heartbeat", 2, 20],
    ["hello", 1, 100],
  ]);
  expect(lastSeen({ ...FIRST_STATE, training })).toMatchObject({ round: 4, losses: [2.5, 2.25] });
});

test("messages to and fro are one row per kind and minute, newest first", () => {
  const entry = (kind: string, isSent: boolean, at: number) => ({ kind, isSent, at, count: 1, bytes: 10 });
  const log = [
    entry("put", true, 0),
    entry("put", true, 100_000),
    entry("grant", false, 100_001),
    entry("put", true, 100_002),
    entry("grant", false, 100_003),
  ];
  const { rows } = trafficOf({ ...new StatusBoard().current, log });
  expect(rows.map(({ kind, count, at }) => [kind, count, at])).toEqual([
    ["grant", 2, 100_003],
    ["put", 2, 100_002],
    ["put", 1, 0],
  ]);
});

test("without a network nothing is connecting", () => {
  expect(trainingOf(new StatusBoard().current, false).connection).toBe("offline");
  expect(trainingOf(new StatusBoard().current, true).connection).toBe("connecting");
});

test("a problem is shown once, and a lost connection never", () => {
  const error = { code: "bad-signature", message: "m", hint: "", at: 20 };
  expect(newProblem(error, 10)).toEqual({ code: "bad-signature", message: "m", hint: "" });
  expect(newProblem(error, 20)).toBeNull();
  expect(newProblem({ ...error, code: "broker-unreachable" }, 10)).toBeNull();
  expect(newProblem(null, 0)).toBeNull();
});

test("what was seen last stays until there is something new, and rounds are counted on", () => {
  const board = new StatusBoard();
  const before = {
    ...FIRST_STATE.training,
    round: 6,
    step: 9,
    totalSteps: 9,
    losses: [2, 1],
    stepMs: 40,
    usedBytes: 5,
    rounds: 7,
  };
  expect(trainingSince(before, board.current, true)).toEqual({ ...before, connection: "connecting" });
  board.set({ state: "fetching", round: 7 });
  expect(trainingSince(before, board.current, true)).toMatchObject({ round: 7, step: 0, losses: [], rounds: 7 });
  board.set({ state: "idle", roundsDone: 1 });
  expect(trainingSince(before, board.current, true)).toMatchObject({ round: 7, rounds: 8 });
});
