import { describe, expect, it } from "vitest";
import { unseal } from "../../src/contracts/envelope";
import { Get, Put } from "../../src/contracts/messages";
import { kindOf } from "../../src/contracts/topics";
import { UPDATE } from "./coordinator";
import { Rig } from "./rig";

describe("a killed tab", () => {
  it("resumes a fetch where it was", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    let served = 0;
    rig.broker.drop = (topic) => kindOf(topic) === "block" && ++served > 7;
    await rig.coordinator.send("order", order);
    await rig.until(() => served > 8);
    await rig.kill();
    const kept = [...rig.files.contents.keys()];
    expect(kept.filter((name) => name.startsWith("blob-")).length).toBeGreaterThan(0);
    expect(kept.filter((name) => name.startsWith("part-")).length).toBeGreaterThan(0);

    rig.broker.drop = null;
    rig.coordinator.told.length = 0;
    await rig.start();
    await rig.coordinator.send("order", { ...order, deadline_s: 400 });
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().bytes_down).toBeLessThan(130_000);
    const first = rig.coordinator.told.find((message) => message.kind === "get")?.envelope.read(Get);
    expect(first?.offset).toBeGreaterThan(0);
    await rig.stop();
  });

  it("trains again what was being trained, without fetching", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.trainer.isTraining);
    await rig.kill();
    expect(rig.coordinator.last("bye")).toBeDefined();

    rig.coordinator.told.length = 0;
    await rig.start();
    expect(rig.coordinator.hello().assignment_id).toBe("");
    await rig.coordinator.send("order", { ...order, deadline_s: 400 });
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.count("get")).toBe(0);
    await rig.stop();
  });

  it("goes on with an upload, and trains nothing twice", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    let puts = 0;
    rig.broker.drop = (topic) => kindOf(topic) === "put" && ++puts > 2;
    await rig.coordinator.send("order", order);
    await rig.until(() => puts > 3);
    await rig.kill();

    rig.broker.drop = null;
    rig.coordinator.told.length = 0;
    await rig.start();
    expect(rig.coordinator.hello()).toMatchObject({ state: "uploading", assignment_id: order.assignment_id });
    await rig.coordinator.send("order", { ...order, deadline_s: 300 });
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.trainer.requests).toHaveLength(0);
    const first = rig.coordinator.told.find((message) => message.kind === "put")?.envelope.read(Put);
    expect(first?.offset).toBe(2 * 16_384);
    expect(rig.coordinator.received.get(rig.coordinator.report().update.digest)).toEqual(UPDATE);
    expect([...rig.files.contents.keys()]).not.toContain(`blob-${rig.coordinator.report().update.digest}`);

    await rig.coordinator.send("order", order);
    await rig.until(() => rig.coordinator.count("refuse") === 1 || rig.coordinator.count("report") > 1);
    await rig.stop();
  });
});

describe("a connection that breaks", () => {
  it("goes on in the middle of a fetch", async () => {
    const rig = await new Rig().start();
    let blocks = 0;
    rig.broker.drop = (topic) => kindOf(topic) === "block" && ++blocks > 5;
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => blocks > 6);
    rig.broker.stop();
    await rig.until(() => rig.agent.status.current.connection === "offline");
    await rig.pass(3);
    rig.broker.drop = null;
    rig.broker.start();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.count("hello")).toBe(2);
    expect(rig.coordinator.report().bytes_down).toBeLessThan(155_000);
    await rig.stop();
  });

  it("goes on in the middle of an upload", async () => {
    const rig = await new Rig().start();
    let puts = 0;
    rig.broker.drop = (topic) => kindOf(topic) === "put" && ++puts > 2;
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => puts > 3);
    rig.broker.stop();
    await rig.pass(10);
    rig.broker.drop = null;
    rig.broker.start();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.trainer.requests).toHaveLength(1);
    await rig.stop();
  });

  it("trains on without one, and reports afterwards", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.trainer.isTraining);
    rig.broker.stop();
    rig.trainer.finish();
    await rig.until(() => rig.state === "uploading");
    rig.broker.start();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
  });
});

describe("messages that are lost, doubled or out of order", () => {
  it("completes a round although a third of the messages is lost", async () => {
    const rig = await new Rig().start();
    let state = 1;
    const order = await rig.coordinator.order();
    rig.broker.drop = (topic) => {
      // By a seeded draw: a fixed period can fall on the same message of every attempt.
      state = (state * 48_271) % 2_147_483_647;
      return kindOf(topic) !== "order" && state % 3 === 0;
    };
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.agent.status.current.roundsDone === 1, 600);
    expect(rig.trainer.requests).toHaveLength(1);
    expect(rig.coordinator.received.get(rig.coordinator.report().update.digest)).toEqual(UPDATE);
    await rig.stop();
  });

  it("does once what it is told twice", async () => {
    const rig = await new Rig().start();
    let isInner = false;
    rig.broker.drop = (topic, payload, qos) => {
      if (!isInner && topic.includes("/dn/")) {
        isInner = true;
        rig.broker.route(topic, payload.slice(), qos);
        isInner = false;
      }
      return false;
    };
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.settle();
    expect(rig.trainer.requests).toHaveLength(1);
    expect(rig.agent.status.current.roundsDone).toBe(1);
    await rig.stop();
  });

  it("puts blocks into their order", async () => {
    const rig = await new Rig().start();
    let held: [string, Uint8Array] | null = null;
    let isInner = false;
    rig.broker.drop = (topic, payload) => {
      if (isInner || kindOf(topic) !== "block") return false;
      // Every second block is delivered before the one that was sent first.
      if (held === null) {
        held = [topic, payload];
        return true;
      }
      isInner = true;
      rig.broker.route(topic, payload, 0);
      rig.broker.route(held[0], held[1], 0);
      isInner = false;
      held = null;
      return true;
    };
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1, 120);
    expect(rig.coordinator.report().bytes_down).toBeLessThan(155_000);
    await rig.stop();
  });

  it("ignores a report's late acknowledgement of another assignment, and kinds it does not know", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.trainer.isTraining);
    await rig.coordinator.send("ack", { assignment_id: "f".repeat(64), accepted: true, code: "", reason: "" });
    await rig.coordinator.send("bye", { reason: "no kind for a device" });
    await rig.settle();
    expect(rig.state).toBe("training");
    await rig.stop();
  });

  it("forgets what was rejected for good, and shows why", async () => {
    const rig = new Rig();
    rig.coordinator.isAcking = false;
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.coordinator.count("report") > 0);
    const { assignment_id } = order;
    await rig.coordinator.send("ack", {
      assignment_id,
      accepted: false,
      code: "update-rejected",
      reason: "not finite",
    });
    await rig.until(() => rig.state === "idle");
    expect(rig.agent.status.current).toMatchObject({ roundsDone: 0, lastError: { code: "update-rejected" } });
    expect(await rig.records.keys("work/")).toEqual([]);
    await rig.stop();
  });

  it("says in each message the bytes that its page shows", async () => {
    const rig = new Rig();
    let sent = 0;
    rig.broker.drop = (topic, payload) => {
      if (topic.includes("/up/") && unseal(payload).v === 1) sent += payload.length;
      return false;
    };
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.settle();
    const { bytesUp, bytesDown, log } = rig.agent.status.current;
    expect(bytesUp).toBe(sent);
    expect(log.reduce((sum, entry) => sum + (entry.isSent ? entry.bytes : 0), 0)).toBe(sent);
    expect(bytesDown).toBeGreaterThan(150_000);
    await rig.stop();
  });
});
