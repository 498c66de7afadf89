import { describe, expect, it } from "vitest";
import { EventQueue } from "../../src/agent/eventQueue";
import { Outbox } from "../../src/agent/outbox";
import { SettledWork } from "../../src/agent/settledWork";
import { StateMachine } from "../../src/agent/states";
import { StatusBoard } from "../../src/agent/status";
import { WorkOrder } from "../../src/contracts/plan";
import { MemoryRecords } from "../../src/store/memoryStore";
import { InMemoryBroker, InMemoryTransport, matches } from "../../src/transport/inMemory";

describe("states", () => {
  it("follow the table, and an illegal move changes nothing", () => {
    const machine = new StateMachine();
    for (const move of ["order", "fetched", "begin", "paused", "begin", "trained", "acked"] as const)
      machine.move(move);
    expect(machine.state).toBe("idle");
    expect(() => machine.move("begin")).toThrow(
      "agent is 'idle': no move 'begin', possible are: order, restored, stop",
    );
    expect(machine.state).toBe("idle");
    machine.move("stop");
    expect(() => machine.move("order")).toThrow("possible are: none");
  });
});

describe("a queue", () => {
  it("gives events in their order, one that is put once only once", async () => {
    const queue = new EventQueue<string>();
    const first = queue.take();
    for (const event of ["a", "b"]) queue.put(event);
    queue.putOnce("tick");
    queue.putOnce("tick");
    queue.put("c");
    expect([await first, await queue.take(), await queue.take(), await queue.take()]).toEqual(["a", "b", "tick", "c"]);
  });
});

describe("settled work", () => {
  const order = (round: number) =>
    WorkOrder.make({
      assignment_id: `a${round}`,
      federation: "digits",
      device: "phone-1",
      round,
      attempt: 0,
      artifact: { digest: "a", size: 1, encoding: "raw", encoded_size: 1 },
      weights: { digest: "b", size: 1, encoding: "raw", encoded_size: 1 },
      schedule: { epochs: 1, steps: 0, turns: [] },
      batch: 1,
      last_batch: "drop",
      data_seed: 1n,
      hyper: {},
      upload: [],
    });

  it("is remembered, the latest thousand", async () => {
    const records = new MemoryRecords();
    const settled = new SettledWork(records);
    for (let round = 0; round < 1_001; round++) {
      await settled.check(order(round));
      await settled.settle(`a${round}`);
    }
    const again = new SettledWork(records);
    await expect(again.check(order(1_000))).rejects.toMatchObject({ code: "replayed-order" });
    await expect(again.check(order(1))).rejects.toThrow("is settled here");
    await again.check(order(0));
  });

  it("holds nothing of an acknowledgement for which no order came", async () => {
    const records = new MemoryRecords();
    await new SettledWork(records).settle("a1");
    expect(await records.keys("")).toEqual([]);
  });
});

describe("a status", () => {
  it("is a new one with every change, and the old one stays as it was", () => {
    const board = new StatusBoard();
    const seen: number[] = [];
    const unsubscribe = board.subscribe((status) => seen.push(status.step));
    const first = board.current;
    board.progress({ step: 1, totalSteps: 9, loss: 0.5, stepMs: 20, peakBytes: 3_000_000 });
    board.set({ step: 1 });
    unsubscribe();
    board.progress({ step: 2, totalSteps: 9, loss: 0.25 });
    expect(board.current).toMatchObject({ stepMs: 20, peakBytes: 3_000_000 });
    expect(seen).toEqual([1]);
    expect(first.lossHistory).toEqual([]);
    expect(board.current.lossHistory).toEqual([0.5, 0.25]);
  });

  it("is bounded", () => {
    const board = new StatusBoard();
    for (let i = 0; i < 1_000; i++) {
      board.progress({ step: i, totalSteps: 1_000, loss: i });
      board.passed(i % 2 === 0, "get", 10);
    }
    expect(board.current.lossHistory).toEqual(Array.from({ length: 500 }, (_, i) => 2 * i));
    expect(board.current.loss).toBe(999);
    expect(board.current.log).toHaveLength(200);
    expect(board.current.bytesUp).toBe(5_000);
  });

  it("counts messages that followed one another together", () => {
    const board = new StatusBoard();
    for (const kind of ["get", "get", "put"]) board.passed(true, kind, 5);
    expect(board.current.log.map(({ kind, count, bytes }) => [kind, count, bytes])).toEqual([
      ["get", 2, 10],
      ["put", 1, 5],
    ]);
  });
});

describe("an outbox", () => {
  it("says nothing without a connection, and says why a message was not sent", async () => {
    const broker = new InMemoryBroker();
    const status = new StatusBoard();
    const transport = new InMemoryTransport(broker, []);
    const outbox = new Outbox(transport, status, "digits", "phone-1", undefined);
    outbox.send("bye", { reason: "x" });
    await outbox.flushed();
    expect(transport.bytesSent).toBe(0);
    outbox.connected();
    outbox.send("bye", { reason: "x".repeat(300_001) });
    outbox.send("bye", { reason: "y" });
    await outbox.flushed();
    expect(status.current.lastError?.message).toContain("over 300000");
    expect(status.current.log).toHaveLength(1);
  });
});

describe("topics", () => {
  it.each([
    ["a/#", "a/b/c", true],
    ["a/+/c", "a/b/c", true],
    ["a/+", "a/b/c", false],
    ["a/b", "a", false],
  ])("%s takes %s: %s", (pattern, topic, isTaken) => expect(matches(pattern, topic)).toBe(isTaken));
});
