import { describe, expect, it } from "vitest";
import type { Ready } from "../../src/trainer/trainer";
import { Rig, ScriptedTrainer } from "./rig";

/** Its runtime is loaded when told. */
class SlowTrainer extends ScriptedTrainer {
  loaded: () => void = () => {};
  readonly #isLoaded = new Promise<void>((resolve) => {
    this.loaded = resolve;
  });

  override async ready(): Promise<Ready> {
    await this.#isLoaded;
    return super.ready();
  }
}

/** Starts an agent whose runtime is loaded `turns` microtasks before the clock ticks; what it says first. */
async function firstTold(rig: Rig, turns: number): Promise<string | undefined> {
  const trainer = new SlowTrainer();
  rig.trainer = trainer;
  const before = rig.coordinator.told.length;
  const started = rig.start();
  await rig.settle();
  trainer.loaded();
  for (let turn = 0; turn < turns; turn++) await Promise.resolve();
  rig.clock.advance(0.25);
  await started;
  await rig.stop();
  return rig.coordinator.kinds()[before];
}

describe("after a connect hello is first", () => {
  it("whenever the runtime comes to be loaded", async () => {
    for (let turns = 0; turns < 16; turns++) expect(await firstTold(new Rig(), turns)).toBe("hello");
  });

  it("with an update at hand", async () => {
    for (let turns = 0; turns < 16; turns++) {
      const rig = new Rig();
      rig.coordinator.isGranting = false;
      await rig.start();
      await rig.coordinator.send("order", await rig.coordinator.order());
      await rig.until(() => rig.coordinator.count("offer") > 0);
      await rig.kill();
      await rig.settle();
      expect(await firstTold(rig, turns)).toBe("hello");
      expect(rig.coordinator.hello().state).toBe("uploading");
    }
  });

  it("when what was said before a break is still being signed", async () => {
    const rig = new Rig();
    const waiting: (() => void)[] = [];
    let isSlow = false;
    const sign = async () => {
      if (isSlow) await new Promise<void>((resolve) => waiting.push(resolve));
      return new Uint8Array(64);
    };
    await rig.start({}, { sign });
    isSlow = true;
    rig.clock.advance(5); // a heartbeat
    await rig.settle();
    expect(waiting).toHaveLength(1);
    const before = rig.coordinator.told.length;
    rig.broker.stop();
    rig.broker.start();
    await rig.settle();
    isSlow = false;
    for (const signed of waiting) signed();
    await rig.until(() => rig.coordinator.told.slice(before).some(({ kind }) => kind === "hello"));
    const told = rig.coordinator.kinds().slice(before);
    expect(told.filter((kind) => kind !== "bye")[0]).toBe("hello");
    await rig.stop();
  });
});
