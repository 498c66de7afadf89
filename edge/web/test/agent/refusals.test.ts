import { ed25519 } from "@noble/curves/ed25519";
import { describe, expect, it } from "vitest";
import { ApportionError } from "../../src/contracts/errors";
import { toBase64 } from "../../src/identity/base64";
import { Trust } from "../../src/identity/trust";
import { bytesOf, manifestOf, WEIGHTS } from "./coordinator";
import { Rig } from "./rig";

class TrainerError extends ApportionError {
  override readonly code: string;
  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

const SECRET = bytesOf(32, 9);
const OTHER_SECRET = bytesOf(32, 13);

function trustIn(secret: Uint8Array): Trust {
  const head = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
  const spki = Uint8Array.from([...head, ...ed25519.getPublicKey(secret)]);
  return Trust.fromPem(`-----BEGIN PUBLIC KEY-----\n${toBase64(spki)}\n-----END PUBLIC KEY-----\n`);
}

async function refusedOf(rig: Rig): Promise<ReturnType<Rig["coordinator"]["refusal"]>> {
  await rig.until(() => rig.coordinator.count("refuse") > 0);
  await rig.settle();
  return rig.coordinator.refusal();
}

describe("memory", () => {
  it("refuses an order whose own figure is over the budget before anything is fetched", async () => {
    const rig = await new Rig().start({ budgetBytes: 50_000_000 });
    await rig.coordinator.send("order", await rig.coordinator.order({ peak_bytes: 60_000_000 }));
    const refusal = await refusedOf(rig);
    expect(refusal).toMatchObject({ code: "device-refused", needed_bytes: 60_000_000, budget_bytes: 50_000_000 });
    expect(refusal.reason).toContain("60000000 bytes, the budget is 50000000");
    expect(rig.coordinator.count("get")).toBe(0);
    expect(rig.agent.status.current.lastError?.code).toBe("device-refused");
    await rig.stop();
  });

  it("adds page, trainer and the artifact's own peak where the order says nothing", async () => {
    const rig = await new Rig().start({ budgetBytes: 60_000_000 });
    await rig.coordinator.send("order", await rig.coordinator.order());
    const needed = 20_000_000 + (4 << 20) + 30_000_000 + 10_000_000;
    expect(await refusedOf(rig)).toMatchObject({ needed_bytes: needed, budget_bytes: 60_000_000 });
    expect(rig.state).toBe("idle");
    expect(rig.trainer.requests).toHaveLength(0);
    await rig.stop();
  });

  it("has no limit with a budget of 0", async () => {
    const rig = await new Rig().start({ budgetBytes: 0 });
    await rig.coordinator.send("order", await rig.coordinator.order({ peak_bytes: 2 ** 40 }));
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report()).toMatchObject({ budget_bytes: 0, over_budget: false });
    await rig.stop();
  });

  it("says in the report when it went over its budget", async () => {
    const rig = await new Rig().start({ budgetBytes: 55_000_000 });
    await rig.coordinator.send("order", await rig.coordinator.order({ peak_bytes: 50_000_000 }));
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report()).toMatchObject({ over_budget: true, trainer_peak_bytes: 40_000_000 });
    await rig.stop();
  });
});

describe("time and data", () => {
  it("gives an order up when its time is over", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order({ deadline_s: 20 }));
    await rig.until(() => rig.trainer.isTraining, 5);
    await rig.pass(21);
    expect(await refusedOf(rig)).toMatchObject({ code: "deadline-expired" });
    expect(rig.coordinator.refusal().reason).toContain("still training");
    expect(rig.trainer.kills).toBe(1);
    expect(rig.state).toBe("idle");
    await rig.stop();
  });

  it("counts an order's time anew when it is repeated", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    const order = await rig.coordinator.order({ deadline_s: 20 });
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.trainer.isTraining, 5);
    await rig.pass(15);
    await rig.coordinator.send("order", { ...order, deadline_s: 21 });
    await rig.pass(15);
    expect(rig.coordinator.count("refuse")).toBe(0);
    expect(rig.state).toBe("training");
    await rig.stop();
  });

  it("refuses while the data cannot be used, and looks again each time", async () => {
    const rig = new Rig();
    rig.data.found = { numExamples: 0, labels: {}, error: "labels.npy has 3 of 5 labels" };
    await rig.start();
    expect(rig.coordinator.hello()).toMatchObject({
      num_examples: 0,
      data_error: expect.stringContaining("cannot be used"),
    });
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "bad-data", reason: expect.not.stringContaining("labels.npy") });
    rig.data.found = { numExamples: 5, labels: { a: 5 }, error: "" };
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
  });

  it("says hello again when there are other examples", async () => {
    const rig = await new Rig().start();
    rig.data.found = { numExamples: 40, labels: { a: 40 }, error: "" };
    rig.agent.dataChanged();
    await rig.until(() => rig.coordinator.count("hello") === 2);
    expect(rig.coordinator.hello().num_examples).toBe(40);
    await rig.stop();
  });

  it("passes on the code of what the trainer could not do", async () => {
    const rig = new Rig();
    rig.trainer.failures = [new TrainerError("parity-failed", "the self-test's loss is 2.1, 2.3 expected")];
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    expect(await refusedOf(rig)).toMatchObject({
      code: "parity-failed",
      reason: "the self-test's loss is 2.1, 2.3 expected",
    });
    await rig.stop();
  });
});

describe("crashes", () => {
  it("begins an order again after one crash", async () => {
    const rig = new Rig();
    rig.trainer.failures = [new TrainerError("trainer-crashed", "the worker ended")];
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.trainer.requests).toHaveLength(2);
    await rig.stop();
  });

  it("refuses it after two, and does not begin it again", async () => {
    const rig = new Rig();
    rig.trainer.failures = [new Error("the worker ended"), new Error("unreachable executed")];
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "trainer-crashed" });
    expect(rig.coordinator.refusal().reason).toContain("crashed 2 times, last with unreachable executed");
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.coordinator.count("refuse") === 2);
    expect(rig.trainer.requests).toHaveLength(2);
    await rig.stop();
  });

  it("does not begin an order again for which memory ran out", async () => {
    const rig = new Rig();
    rig.trainer.failures = [new TrainerError("out-of-memory", "1.5 GB could not be had")];
    await rig.start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "out-of-memory" });
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.coordinator.count("refuse") === 2);
    expect(rig.trainer.requests).toHaveLength(1);
    await rig.stop();
  });

  it("refuses an order over which the page ended three times", async () => {
    const rig = new Rig();
    const order = await rig.coordinator.order();
    for (let death = 0; death < 3; death++) {
      rig.trainer.isInstant = false;
      await rig.start();
      await rig.coordinator.send("order", order);
      await rig.until(() => rig.trainer.isTraining);
      await rig.kill();
    }
    await rig.start();
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "trainer-crashed" });
    expect(rig.coordinator.refusal().reason).toContain("the page ended 3 times");
    await rig.stop();
  });
});

describe("what is not trusted", () => {
  it("follows what a trusted key has signed", async () => {
    const rig = new Rig();
    rig.coordinator.secret = SECRET;
    await rig.start({ trust: trustIn(SECRET) });
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
  });

  it("refuses a forged order and shows it", async () => {
    const rig = new Rig();
    rig.coordinator.secret = OTHER_SECRET;
    await rig.start({ trust: trustIn(SECRET) });
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "bad-signature", assignment_id: order.assignment_id });
    expect(rig.agent.status.current.lastError?.code).toBe("bad-signature");
    expect(rig.coordinator.count("get")).toBe(0);
    await rig.stop();
  });

  it("goes on with the order in hand when one is forged under its id", async () => {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    rig.coordinator.secret = SECRET;
    await rig.start({ trust: trustIn(SECRET) });
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.trainer.isTraining);
    rig.coordinator.secret = OTHER_SECRET;
    await rig.coordinator.send("order", { ...order, hyper: { lr: 9 } });
    await rig.until(() => rig.coordinator.count("error") === 1);
    expect(rig.coordinator.complaint().code).toBe("bad-signature");
    expect(rig.coordinator.count("refuse")).toBe(0);
    expect(rig.state).toBe("training");
    await rig.stop();
  });

  it("refuses a manifest that nobody trusted has signed before reading it", async () => {
    const rig = new Rig();
    rig.coordinator.secret = SECRET;
    await rig.start({ trust: trustIn(SECRET) });
    const artifact_signature = ed25519.sign(await manifestOf(), OTHER_SECRET);
    await rig.coordinator.send("order", await rig.coordinator.order({ artifact_signature }));
    expect(await refusedOf(rig)).toMatchObject({ code: "bad-signature" });
    expect(rig.coordinator.asked()).toHaveLength(1);
    await rig.stop();
  });

  it("fetches a tampered blob once more, and refuses it the second time", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    rig.coordinator.tampered.set(order.weights.digest, 1);
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().bytes_down).toBeGreaterThan(250_000);

    const weights = await rig.coordinator.publish(bytesOf(70_000, 17));
    rig.coordinator.tampered.set(weights.digest, 2);
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 2, weights }));
    expect(await refusedOf(rig)).toMatchObject({ code: "artifact-corrupt" });
    expect(rig.agent.status.current.lastError?.message).toContain("fetch it again");
    expect(rig.trainer.requests).toHaveLength(1);
    await rig.stop();
  });

  it("refuses a tampered manifest", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    rig.coordinator.tampered.set(order.artifact.digest, 2);
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "artifact-corrupt" });
    await rig.stop();
  });

  it("refuses an artifact of another runtime", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", await rig.coordinator.order({}, await manifestOf({ runtime: "executorch" })));
    expect(await refusedOf(rig)).toMatchObject({ code: "device-refused" });
    expect(rig.coordinator.refusal().reason).toContain("'executorch'");
    await rig.stop();
  });

  it("refuses zstd", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", await rig.coordinator.order({ encoding: "zstd" }));
    expect(await refusedOf(rig)).toMatchObject({ code: "unsupported-encoding" });
    const weights = { ...(await rig.coordinator.publish(WEIGHTS)), encoding: "zstd" as const };
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 2, weights }));
    await rig.until(() => rig.coordinator.count("refuse") === 2);
    expect(rig.coordinator.refusal().code).toBe("unsupported-encoding");
    await rig.stop();
  });

  it("refuses a blob that the coordinator does not have", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    rig.coordinator.blobs.delete(order.weights.digest);
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "unknown-blob" });
    await rig.stop();
  });

  it("complains of an order for another device, and of what is no message", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", { ...(await rig.coordinator.order()), device: "phone-2" });
    await rig.until(() => rig.coordinator.count("error") === 1);
    expect(rig.coordinator.complaint().message).toContain("order is for digits/phone-2");
    rig.coordinator.transport.publish("apportion/v1/digits/dn/phone-1/order", bytesOf(40, 3), 1);
    await rig.until(() => rig.coordinator.count("error") === 2);
    expect(rig.coordinator.complaint().code).toBe("bad-message");
    expect(rig.state).toBe("idle");
    await rig.stop();
  });

  it("refuses an order that is replayed after it was settled, also on another day", async () => {
    const rig = await new Rig().start();
    const order = await rig.coordinator.order();
    await rig.coordinator.send("order", order);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.coordinator.send("order", order);
    expect(await refusedOf(rig)).toMatchObject({ code: "replayed-order", assignment_id: order.assignment_id });
    await rig.stop();
    await rig.start();
    await rig.coordinator.send("order", { ...order, bulk: "https://elsewhere/" });
    await rig.until(() => rig.coordinator.count("refuse") === 2);
    expect(rig.coordinator.refusal().code).toBe("replayed-order");
    expect(rig.trainer.requests).toHaveLength(1);
    expect(rig.agent.status.current.lastError?.code).toBe("replayed-order");
    // A new run of the same federation begins with the same assignment ids, and has measured other seconds.
    await rig.coordinator.send("order", { ...order, deadline_s: 599.25 });
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
  });

  it("stops when the broker denies it, and shows that", async () => {
    const rig = new Rig();
    rig.broker.denial = "the token of 'phone-1' is not known";
    await rig.start();
    await rig.ended();
    expect(rig.agent.status.current).toMatchObject({ connection: "denied", state: "stopped" });
    expect(rig.agent.status.current.lastError).toMatchObject({
      code: "access-denied",
      message: "the token of 'phone-1' is not known",
    });
  });

  it("signs what it sends where it has a key", async () => {
    const rig = new Rig();
    const signed: string[] = [];
    const sign = async (body: Uint8Array, kind: string, id: string) => {
      // Later messages are signed faster: they leave in their order all the same.
      await new Promise((resolve) => setTimeout(resolve, kind === "offer" ? 5 : 0));
      signed.push(`${kind} ${id} ${body.length}`);
      return new Uint8Array(64).fill(7);
    };
    await rig.start({}, { sign });
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
    for (const { kind, envelope } of rig.coordinator.told) {
      expect(signed).toContain(`${kind} ${envelope.id} ${envelope.body.length}`);
      expect(envelope.signature).toHaveLength(64);
    }
    const told = [...new Set(rig.coordinator.kinds())].filter((kind) => kind !== "heartbeat");
    expect(told).toEqual(["hello", "accept", "get", "offer", "put", "report", "profile", "bye"]);
  });
});
