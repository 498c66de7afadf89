import { describe, expect, it } from "vitest";
import { type Grant, Put } from "../../src/contracts/messages";
import { kindOf } from "../../src/contracts/topics";
import { sha256Hex } from "../../src/store/digest";
import { UPDATE } from "./coordinator";
import { Rig } from "./rig";

const METERED = { waitingFor: "network", reason: "the link is mobile data" } as const;
const EMPTY = { waitingFor: "battery", reason: "the battery has 9 %" } as const;

async function waiting(rig: Rig, unmet: { readonly waitingFor: string; readonly reason: string }): Promise<void> {
  await rig.until(() => rig.state === "waiting" && rig.coordinator.heartbeat().state === "waiting");
  expect(rig.coordinator.heartbeat()).toMatchObject({ waiting_for: unmet.waitingFor, reason: unmet.reason });
  expect(rig.agent.status.current).toMatchObject(unmet);
}

describe("a download", () => {
  it.each([METERED, EMPTY])("waits with its reason, its order accepted: $waitingFor", async (unmet) => {
    const rig = await new Rig().start();
    rig.conditions.become(unmet);
    await rig.coordinator.send("order", await rig.coordinator.order());
    await waiting(rig, unmet);
    await rig.pass(20);
    expect(rig.coordinator.count("accept")).toBe(1);
    expect(rig.coordinator.count("get")).toBe(0);

    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().bytes_down).toBeGreaterThan(150_000);
    await rig.stop();
  });

  it("stops in its middle and goes on from there", async () => {
    const rig = await new Rig().start();
    let blocks = 0;
    rig.broker.drop = (topic) => {
      if (kindOf(topic) === "block" && ++blocks === 6) rig.conditions.become(METERED);
      return false;
    };
    await rig.coordinator.send("order", await rig.coordinator.order());
    await waiting(rig, METERED);
    await rig.settle();
    const gets = rig.coordinator.count("get");
    await rig.pass(30);
    expect(rig.coordinator.count("get")).toBe(gets);

    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    // What was on its way when it stopped came in vain, and is not counted.
    expect(rig.coordinator.report().bytes_down).toBeLessThan(155_000);
    await rig.stop();
  });

  it("is not waited for when all is here already", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    rig.conditions.become(METERED);
    const gets = rig.coordinator.count("get");
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 2 }));
    await waiting(rig, METERED); // for its training
    expect(rig.agent.status.current.totalBytes).toBe(0);
    rig.conditions.become({ waitingFor: "time", reason: "at night" });
    await rig.pass(1);
    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 2);
    expect(rig.coordinator.count("get")).toBe(gets);
    await rig.stop();
  });

  it("is not held back by what holds trainings back only", async () => {
    const rig = await new Rig().start();
    rig.conditions.become({ waitingFor: "hidden", reason: "the page is not visible" });
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.state === "waiting");
    expect(rig.coordinator.count("get")).toBeGreaterThan(0);
    expect(rig.trainer.requests).toHaveLength(0);
    await rig.stop();
  });

  it("that waits too long is given up, and a newer order takes its place", async () => {
    const rig = await new Rig().start();
    rig.conditions.become(METERED);
    await rig.coordinator.send("order", await rig.coordinator.order({ deadline_s: 20 }));
    await waiting(rig, METERED);
    await rig.until(() => rig.coordinator.count("refuse") === 1);
    expect(rig.coordinator.refusal()).toMatchObject({
      code: "deadline-expired",
      reason: expect.stringContaining("waiting"),
    });
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 2 }));
    await waiting(rig, METERED);
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 3 }));
    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().round).toBe(3);
    await rig.stop();
  });
});

describe("an upload", () => {
  async function trained(): Promise<Rig> {
    const rig = new Rig();
    rig.trainer.isInstant = false;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.trainer.isTraining);
    return rig;
  }

  it("waits for another link, whatever it is granted, and goes on by itself", async () => {
    const rig = await trained();
    rig.trainer.finish();
    rig.conditions.become(METERED);
    await waiting(rig, METERED);
    await rig.pass(20);
    const { assignment_id } = rig.coordinator.accept();
    const digest = await sha256Hex(UPDATE);
    await rig.coordinator.send("grant", {
      assignment_id,
      digest,
      offset: 0,
      block_bytes: 16_384,
      window: 2,
    } satisfies Grant);
    await rig.pass(2);
    expect(rig.coordinator.count("offer")).toBe(0);
    expect(rig.coordinator.count("put")).toBe(0);

    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.received.get(rig.coordinator.report().update.digest)).toEqual(UPDATE);
    await rig.stop();
  });

  it("stops in its middle, over a killed tab as well, and goes on from there", async () => {
    const rig = await trained();
    let puts = 0;
    rig.broker.drop = (topic) => {
      if (kindOf(topic) === "put" && ++puts === 2) rig.conditions.become(METERED);
      return false;
    };
    rig.trainer.finish();
    await waiting(rig, METERED);
    await rig.settle();
    await rig.pass(20);
    const sent = puts;
    expect(sent).toBeLessThan(4);
    await rig.kill();
    rig.coordinator.told.length = 0;
    await rig.start();
    expect(rig.coordinator.hello()).toMatchObject({ state: "waiting" });
    await rig.pass(20);
    expect(puts).toBe(sent);

    rig.conditions.become(null);
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    const first = rig.coordinator.told.find(({ kind }) => kind === "put")?.envelope.read(Put);
    expect(first?.offset).toBe(sent * 16_384);
    await rig.stop();
  });

  it("is not held back by an empty battery: what is trained is worth its few bytes", async () => {
    const rig = await trained();
    rig.conditions.become(EMPTY);
    await rig.until(() => rig.state === "waiting");
    rig.trainer.finish();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    await rig.stop();
  });

  it("that has arrived is reported all the same, and its acknowledgement ends it", async () => {
    const rig = await trained();
    rig.broker.drop = (topic) => kindOf(topic) === "report";
    rig.trainer.finish();
    await rig.until(
      () => rig.coordinator.received.get([...rig.coordinator.received.keys()][0] ?? "")?.length === UPDATE.length,
    );
    rig.conditions.become(METERED);
    await rig.pass(1);
    rig.broker.drop = null;
    await rig.until(() => rig.agent.status.current.roundsDone === 1, 12);
    await rig.stop();
  });
});

describe("a report", () => {
  it("tells the most that the page was seen to hold", async () => {
    const held = [31_000_000, 44_000_000, 22_000_000];
    const rig = new Rig();
    rig.trainer.isInstant = false;
    rig.heldBytes = () => held.shift() ?? 22_000_000;
    await rig.start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.trainer.isTraining);
    await rig.pass(20);
    rig.trainer.finish();
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().supervisor_peak_bytes).toBe(44_000_000);
    await rig.stop();
  });

  it("tells the idle size where nothing more can be read", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", await rig.coordinator.order());
    await rig.until(() => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.report().supervisor_peak_bytes).toBe(20_000_000);
    await rig.stop();
  });
});
