import { expect, it } from "vitest";
import { StatusBoard } from "../../src/agent/status";

it("keeps little of what a broker puts in somebody's mouth", () => {
  const board = new StatusBoard();
  const long = "x".repeat(300_000);
  board.failed(long, long);
  for (let i = 0; i < 300; i += 1) board.passed(false, `${i}${long}`, 1);
  const { lastError, log } = board.current;
  expect(lastError?.code).toHaveLength(40);
  expect(lastError?.message).toHaveLength(500);
  expect(log.reduce((sum, entry) => sum + entry.kind.length, 0)).toBe(200 * 40);
});
