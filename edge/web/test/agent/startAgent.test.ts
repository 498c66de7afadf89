import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { describe, expect, it, vi } from "vitest";
import { startAgent } from "../../src/agent/startAgent";
import { DeviceProfile } from "../../src/contracts/profile";
import { toBase64 } from "../../src/identity/base64";
import { DeviceKey } from "../../src/identity/deviceKey";
import { IndexedDbRecords } from "../../src/store/indexedDbRecords";
import { MemoryRecords, MemoryStore } from "../../src/store/memoryStore";
import { bytesOf } from "./coordinator";
import { ScriptedData, ScriptedTrainer } from "./rig";

const HEAD = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PEM = `-----BEGIN PUBLIC KEY-----\n${toBase64(Uint8Array.from([...HEAD, ...bytesOf(32, 3)]))}\n-----END PUBLIC KEY-----\n`;

function parts() {
  return {
    trainer: new ScriptedTrainer(),
    data: new ScriptedData(),
    store: new MemoryStore(),
    profile: { profile: async () => DeviceProfile.make({ device: "" }), measured: async () => {} },
  };
}

describe("the example", () => {
  it("is the one that is compiled", () => {
    const text = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");
    const told = /@example\n([\s\S]*?)\n \*\n/.exec(text("../../src/agent/startAgent.ts"))?.[1] ?? "";
    const compiled = /\/\/ begin\n([\s\S]*?)\n {2}\/\/ end/.exec(text("embeddingExample.ts"))?.[1] ?? "";
    expect(told.replace(/^ \* /gm, "")).toBe(compiled.replace(/^ {2}/gm, ""));
    expect(told).not.toBe("");
  });
});

describe("starting", () => {
  it("says what is missing to a device that has joined nothing", async () => {
    await expect(startAgent({ ...parts(), records: new MemoryRecords() })).rejects.toThrow("has joined no federation");
  });

  it("connects as the device that was enrolled, and stops when asked", async () => {
    // A broker that only takes the first bytes: it is enough to see that someone comes.
    let request = "";
    const server = createServer((socket) => socket.on("data", (data) => (request += data.toString("latin1"))));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const address = server.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    const records = new IndexedDbRecords("start-agent");
    const enrolment = {
      device: "phone-1",
      federation: "digits",
      broker: `ws://127.0.0.1:${port}`,
      user: "phone-1",
      password: "token",
      signing_public: PEM,
      claimed_at: 1,
    };
    await records.put("identity/enrolled", { enrolment, pair: (await DeviceKey.make()).pair });
    const agent = await startAgent({ ...parts(), records });
    for (let i = 0; i < 200 && !request.includes("mqtt"); i++) await new Promise((resolve) => setTimeout(resolve, 10));
    expect(request).toContain("Sec-WebSocket-Protocol: mqtt");
    expect(agent.status.current).toMatchObject({ connection: "connecting", state: "idle" });
    await agent.stop();
    await agent.ended;
    expect(agent.status.current).toMatchObject({ state: "stopped", lastError: null });
    server.close();
  });

  it("reads what the owner chose when the tab before has let go", async () => {
    let letGo = () => {};
    const turn = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    vi.stubGlobal("navigator", {
      locks: { request: (_: string, __: object, held: (lock: object) => Promise<void>) => turn.then(() => held({})) },
    });
    const records = new IndexedDbRecords("start-agent");
    let budgetBytes = 1;
    const read: number[] = [];
    const chosen = async () => {
      read.push(budgetBytes);
      return { budgetBytes, threads: 0 };
    };
    const agent = await startAgent({ ...parts(), records, chosen });
    budgetBytes = 2;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(read).toEqual([]);
    letGo();
    for (let i = 0; i < 200 && read.length === 0; i++) await new Promise((resolve) => setTimeout(resolve, 10));
    expect(read).toEqual([2]);
    await agent.stop();
    vi.unstubAllGlobals();
  });

  it("says so when the browser lost the key, although it kept the rest", async () => {
    const records = new MemoryRecords();
    await records.put("identity/enrolled", { enrolment: { device: "phone-1" }, tokenDigest: "ab" });
    await expect(startAgent({ ...parts(), records })).rejects.toThrow("has joined no federation");
  });
});
