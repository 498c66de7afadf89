import { describe, expect, it } from "vitest";
import { EventQueue } from "../../src/agent/eventQueue";

describe("a queue of events", () => {
  it("gives them out in their order, whoever comes first", async () => {
    const queue = new EventQueue<number>();
    const first = queue.take();
    for (const event of [1, 2, 3]) queue.put(event);
    expect([await first, await queue.take(), await queue.take()]).toEqual([1, 2, 3]);
  });

  it("keeps 4 MiB of messages at most, and every event of its own", async () => {
    const queue = new EventQueue<number | string>((event) => (typeof event === "number" ? event : undefined));
    for (let i = 0; i < 100; i += 1) queue.put(300_000);
    queue.put("stop");
    let [messages, event] = [0, await queue.take()];
    for (; event !== "stop"; event = await queue.take()) messages += 1;
    expect(messages).toBe(Math.floor((4 << 20) / 300_256));
    for (let i = 0; i < 20; i += 1) queue.put(300_000); // there is room again
    for (let i = 0; i < messages; i += 1) expect(await queue.take()).toBe(300_000);
  });

  it("counts messages of no bytes, too", async () => {
    const queue = new EventQueue<number | string>((event) => (typeof event === "number" ? event : undefined));
    for (let i = 0; i < 100_000; i += 1) queue.put(0);
    queue.put("stop");
    let messages = 0;
    while ((await queue.take()) !== "stop") messages += 1;
    expect(messages).toBe((4 << 20) / 256);
  });
});
