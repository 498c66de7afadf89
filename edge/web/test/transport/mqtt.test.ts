import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import type { LastWill } from "../../src/transport/mqtt";
import { MqttTransport } from "../../src/transport/mqtt";
import type { TransportEvent } from "../../src/transport/transport";

const MOSQUITTO = "/usr/sbin/mosquitto";
const PASSWD = "/usr/bin/mosquitto_passwd";
const PASSWORD = "a-token-of-32-bytes";
const DOWN = "apportion/v1/digits/dn/phone-1/order";
const UP = "apportion/v1/digits/up/phone-1/hello";
const WILL: LastWill = { topic: "apportion/v1/digits/up/phone-1/bye", payload: Uint8Array.of(0x81, 0xff, 0) };

// The broker is the one that production has: what is tried here is how MQTT.js gets on with it.
describe.skipIf(!existsSync(MOSQUITTO) || !existsSync(PASSWD))("over Mosquitto's WebSockets", () => {
  const folder = mkdtempSync(join(tmpdir(), "apportion-mqtt-"));
  let port = 0;
  let broker: ChildProcess | null = null;
  const transports: MqttTransport[] = [];

  beforeAll(() => {
    writeFileSync(join(folder, "users"), "");
    for (const user of ["phone-1", "coordinator"]) {
      execFileSync(PASSWD, ["-b", join(folder, "users"), user, PASSWORD], { stdio: "ignore" });
    }
    writeFileSync(
      join(folder, "access"),
      "user coordinator\ntopic readwrite apportion/#\npattern write apportion/v1/+/up/%u/#\n" +
        "pattern read apportion/v1/+/dn/%u/#\npattern read apportion/v1/+/all/#\n",
    );
  });

  afterEach(async () => {
    for (const transport of transports.splice(0)) await transport.stop();
    await stopBroker();
  });

  async function startBroker(on?: number): Promise<void> {
    port = on ?? (await freePort());
    const lines = [
      // Mosquitto 2.0.11 does not start with a listener for WebSockets alone.
      `listener ${await freePort()} 127.0.0.1`,
      `listener ${port} 127.0.0.1`,
      "protocol websockets",
      "allow_anonymous false",
      `password_file ${join(folder, "users")}`,
      `acl_file ${join(folder, "access")}`,
      process.getuid?.() === 0 ? "user root" : "",
    ];
    writeFileSync(join(folder, "broker.conf"), `${lines.join("\n")}\n`);
    broker = spawn(MOSQUITTO, ["-c", join(folder, "broker.conf")], { stdio: "ignore" });
    await new Promise((resolve) => setTimeout(resolve, 300));
  }

  async function stopBroker(): Promise<void> {
    const ended = new Promise((resolve) => broker?.once("exit", resolve));
    if (broker?.kill("SIGKILL")) await ended;
    broker = null;
  }

  function connect(device: string, subscriptions: string[], password = PASSWORD): [MqttTransport, TransportEvent[]] {
    const url = `ws://127.0.0.1:${port}`;
    const transport = new MqttTransport({ url, device, password, subscriptions, will: WILL });
    const events: TransportEvent[] = [];
    transports.push(transport);
    transport.start((event) => events.push(event));
    return [transport, events];
  }

  const has = (events: TransportEvent[], type: string) => events.some((event) => event.type === type);
  const payloads = (events: TransportEvent[], topic: string) =>
    events.flatMap((event) => (event.type === "received" && event.topic === topic ? [event.payload] : []));

  it("carries bytes both ways and counts them", async () => {
    await startBroker();
    const [coordinator, heard] = connect("coordinator", ["apportion/v1/digits/up/#"]);
    const [phone, told] = connect("phone-1", ["apportion/v1/digits/dn/phone-1/#", "apportion/v1/digits/all/#"]);
    await until(() => has(heard, "connected") && has(told, "connected"));
    const block = Uint8Array.from({ length: 16_500 }, (_, i) => i & 255);
    phone.publish(UP, block, 1);
    coordinator.publish(DOWN, block, 0);
    await until(() => payloads(heard, UP).length === 1 && payloads(told, DOWN).length === 1);
    expect(Array.from(payloads(told, DOWN)[0] ?? [])).toEqual(Array.from(block));
    expect([phone.bytesSent, phone.bytesReceived]).toEqual([16_500, 16_500]);
    expect(() => phone.publish(UP, new Uint8Array(300_001), 1)).toThrow("300001 bytes");
  });

  it("comes back after the broker was killed, subscribed again", async () => {
    await startBroker();
    const [, told] = connect("phone-1", ["apportion/v1/digits/dn/phone-1/#"]);
    await until(() => has(told, "connected"));
    const on = port;
    await stopBroker();
    await until(() => has(told, "disconnected"));
    await startBroker(on);
    await until(() => told.filter((event) => event.type === "connected").length === 2);
    const [coordinator, heard] = connect("coordinator", ["apportion/v1/digits/up/#"]);
    await until(() => has(heard, "connected"));
    coordinator.publish(DOWN, Uint8Array.of(1, 2, 3), 1);
    await until(() => payloads(told, DOWN).length === 1);
  });

  it("says that it was denied, once, and tries no more", async () => {
    await startBroker();
    const [phone, told] = connect("phone-1", ["apportion/v1/digits/dn/phone-1/#"], "another-token");
    await until(() => has(told, "denied"));
    expect(has(told, "connected")).toBe(false);
    const count = told.length;
    phone.publish(UP, Uint8Array.of(1), 1);
    await new Promise((resolve) => setTimeout(resolve, 2_500));
    expect(told).toHaveLength(count);
    expect(phone.bytesSent).toBe(0);
  });

  it("leaves its sealed last will as it was sealed, and none after a goodbye", async () => {
    await startBroker();
    const [, heard] = connect("coordinator", ["apportion/v1/digits/up/#"]);
    const [phone, told] = connect("phone-1", ["apportion/v1/digits/dn/phone-1/#"]);
    await until(() => has(heard, "connected") && has(told, "connected"));
    // A second connection under the same name takes its place, and the broker tells of the first one's end.
    const [second, taken] = connect("phone-1", ["apportion/v1/digits/dn/phone-1/#"]);
    await until(() => has(taken, "connected") && payloads(heard, WILL.topic).length === 1);
    expect(Array.from(payloads(heard, WILL.topic)[0] ?? [])).toEqual([0x81, 0xff, 0]);
    await phone.stop();
    second.publish(UP, Uint8Array.of(5), 1);
    await second.stop();
    await until(() => payloads(heard, UP).length === 1);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(payloads(heard, WILL.topic).length).toBe(1);
  });
});

describe("an address", () => {
  const options = { device: "phone-1", password: "x", subscriptions: [], will: WILL };

  it("has to be encrypted, but for this machine", () => {
    expect(() => new MqttTransport({ ...options, url: "ws://192.168.1.5:9001" })).toThrow("not wss://");
    expect(() => new MqttTransport({ ...options, url: "mqtt://127.0.0.1:1883" })).toThrow("not wss://");
    expect(new MqttTransport({ ...options, url: "wss://192.168.1.5:9001/mqtt" }).bytesSent).toBe(0);
  });
});

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0));
    });
  });
}

async function until(isSo: () => boolean): Promise<void> {
  for (let i = 0; i < 400; i++) {
    if (isSo()) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error("not within 10 s");
}
