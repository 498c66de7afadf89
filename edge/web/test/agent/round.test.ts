import { describe, expect, it } from "vitest";
import { Bye } from "../../src/contracts/messages";
import { sha256Hex } from "../../src/store/digest";
import { bytesOf, DEVICE, manifestOf, UPDATE, WEIGHTS } from "./coordinator";
import { Rig } from "./rig";

describe("a round", () => {
  it("goes from hello to ack, each thing once", async () => {
    const rig = await new Rig().start();
    const { coordinator, agent } = rig;
    const hello = coordinator.hello();
    expect(hello).toMatchObject({ device: DEVICE, num_examples: 16, state: "idle", block_bytes: 16_384, window: 4 });
    expect(hello.runtimes).toEqual({ onnxruntime_web: "1.30.0" });
    expect(hello.profile.trainer_idle_bytes).toEqual({ onnxruntime_web: 30_000_000 });

    const order = await coordinator.order({ threads: 3, report_labels: true });
    await coordinator.send("order", order);
    await rig.until(() => agent.status.current.roundsDone === 1);

    const report = coordinator.report();
    expect(report).toMatchObject({ assignment_id: order.assignment_id, num_examples: 16, steps: 4, loss: 0.5 });
    expect(report.labels).toEqual([0, 1]);
    expect(report.update.digest).toBe(await sha256Hex(UPDATE));
    expect(coordinator.received.get(report.update.digest)).toEqual(UPDATE);
    expect(report.bytes_down).toBeGreaterThan(150_000);
    expect(rig.trainer.requests).toHaveLength(1);
    expect(rig.trainer.requests[0]).toMatchObject({ threads: 3, store: "apportion" });
    expect(rig.measured[0]).toMatchObject({ stepMsP50: 12, batch: 4, predictedPeakBytes: 10_000_000 });
    const told = [...new Set(coordinator.kinds())].filter((kind) => kind !== "heartbeat");
    expect(told).toEqual(["hello", "accept", "get", "offer", "put", "report", "profile"]);
    expect(rig.state).toBe("idle");
    expect(agent.status.current.lossHistory).toEqual([1]);
    expect(await rig.records.keys("work/")).toEqual([]);
    await rig.stop();
    expect(coordinator.last("bye").read(Bye).reason).toBe("stopped");
  });

  it("says hello again when the coordinator asks who is there", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.askWho();
    await rig.until(() => rig.coordinator.count("hello") === 2);
    await rig.stop();
  });

  it("answers an order that is repeated while it runs with accept alone", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.trainer.isTraining);
    await rig.coordinator.send("order", { ...order, deadline_s: 300, bulk: "https://other/" });
    await rig.until(() => rig.coordinator.count("accept") === 2);
    expect(rig.trainer.requests).toHaveLength(1);
    expect(rig.state).toBe("training");
    await rig.stop();
  });

  it("answers an order that is repeated after it was done with the report again", async () => {
    const rig = new Rig();
    rig.coordinator.isAcking = false;
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.coordinator.count("report") === 1);
    await rig.coordinator.send("order", { ...order, deadline_s: 500 });
    await rig.until(() => rig.coordinator.count("report") === 2, 1);
    const ids = rig.coordinator.told.filter((message) => message.kind === "report").map((m) => m.envelope.id);
    expect(new Set(ids).size).toBe(1);
    expect(rig.trainer.requests).toHaveLength(1);
    await rig.stop();
  });

  it("drops the order in hand for another one", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.trainer.isTraining);
    const other = await rig.coordinator.order({ round: 2 });
    await rig.coordinator.send("order", other);
    await rig.until(() => rig.trainer.requests.length === 2);
    expect(rig.trainer.kills).toBe(1);
    expect(rig.agent.status.current).toMatchObject({ round: 2, assignmentId: other.assignment_id });
    rig.trainer.finish();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().round).toBe(2);
    await rig.stop();
  });

  it("does not fetch again what it has, nor does a new agent on the same store", async () => {
    const rig = await new Rig().start();
    const { coordinator } = rig;
    await coordinator.send("order", await coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(coordinator.asked()).toHaveLength(3);
    await rig.stop();

    coordinator.told.length = 0;
    await rig.start();
    const weights = await coordinator.publish(bytesOf(90_000, 11));
    await coordinator.send("order", await coordinator.order({ round: 2, weights }));
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(coordinator.asked()).toEqual([weights.digest]);
    expect(coordinator.report().bytes_down).toBe(90_000);
    await rig.stop();
  });

  it("goes on when the weights' blob in the store has been damaged", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    await rig.files.write(`blob-${order.weights.digest}`, WEIGHTS.slice(1));
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.asked()).toContain(order.weights.digest);
    await rig.stop();
  });

  it("pauses while a condition is unmet, says so, and goes on", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    rig.conditions.become({ waitingFor: "battery", reason: "12 % of 20 %" });
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.state === "waiting" && rig.coordinator.count("heartbeat") > 0);
    await rig.until(() => rig.coordinator.heartbeat().waiting_for === "battery", 1);
    expect(rig.coordinator.heartbeat().reason).toBe("12 % of 20 %");
    expect(rig.trainer.requests).toHaveLength(0);

    rig.conditions.become(null);
    await rig.until(() => rig.trainer.isTraining, 1);
    rig.trainer.progress(2);
    rig.conditions.become({ waitingFor: "hidden", reason: "the page is not visible" });
    await rig.until(() => rig.trainer.isPaused, 1);
    expect(rig.agent.status.current).toMatchObject({ state: "waiting", waitingFor: "hidden", step: 2 });
    await rig.until(() => rig.coordinator.heartbeat().waiting_for === "hidden", 1);

    rig.conditions.become(null);
    await rig.until(() => !rig.trainer.isPaused, 1);
    await rig.until(() => rig.coordinator.heartbeat().state === "training", 1);
    rig.trainer.finish();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.trainer.requests).toHaveLength(1);
    await rig.stop();
  });

  it("takes an artifact of its own runtime's name too", async () => {
    const rig = await new Rig().start();
    const manifest = await manifestOf({ runtime: "onnxruntime_web" });
    await rig.coordinator.send("order", await rig.coordinator.order({}, manifest));
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().runtime).toBe("onnxruntime_web");
    await rig.stop();
  });
});

describe("a trainer without work", () => {
  it("is ended after half a minute, and not before it has trained", async () => {
    const rig = await new Rig().start();
    await rig.pass(40);
    expect(rig.trainer.kills).toBe(0);
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.pass(25);
    expect(rig.trainer.kills).toBe(0);
    await rig.pass(10);
    expect(rig.trainer.kills).toBe(1);
    await rig.stop();
  });
});
