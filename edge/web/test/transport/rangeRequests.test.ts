import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { RangeRequests } from "../../src/transport/rangeRequests";
import { bytesOf, type Coordinator } from "../agent/coordinator";
import { Rig } from "../agent/rig";

const DATA = bytesOf(400_000, 23);
const NEVER = new AbortController().signal;
const servers: Server[] = [];

afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

function requestsAt(url: string): RangeRequests {
  const requests = RangeRequests.at(url);
  if (requests === null) throw new Error(`${url} is no address for pieces`);
  return requests;
}

/** A real server on loopback that answers as `answer` says. */
async function serve(answer: (request: IncomingMessage, response: ServerResponse) => void): Promise<string> {
  const server = createServer(answer).listen(0, "127.0.0.1");
  servers.push(server);
  await new Promise((resolve) => server.once("listening", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/ticket/`;
}

function ranged(data: Uint8Array, request: IncomingMessage, response: ServerResponse): void {
  const [first, last] = (request.headers.range ?? "").replace("bytes=", "").split("-").map(Number) as [number, number];
  const end = Math.min(last, data.length - 1);
  response.writeHead(206, { "Content-Range": `bytes ${first}-${end}/${data.length}` });
  response.end(data.subarray(first, end + 1));
}

describe("a piece", () => {
  it("is exactly the range that was asked for", async () => {
    const seen: (string | undefined)[] = [];
    const url = await serve((request, response) => {
      seen.push(request.url, request.headers.range);
      ranged(DATA, request, response);
    });
    const piece = await requestsAt(url).piece("d1", 100, 5_000, DATA.length, NEVER);
    expect(piece).toEqual(DATA.slice(100, 5_100));
    expect(seen).toEqual(["/v1/ticket/d1", "bytes=100-5099"]);
  });

  it("is refused where the answer is anything else", async () => {
    const answers: Record<string, (request: IncomingMessage, response: ServerResponse) => void> = {
      "/v1/ticket/whole": (_, response) => response.end(DATA),
      "/v1/ticket/gone": (_, response) => response.writeHead(404).end(),
      "/v1/ticket/moved": (_, response) => response.writeHead(302, { Location: "/v1/ticket/good" }).end(),
      "/v1/ticket/other": (_, response) =>
        response.writeHead(206, { "Content-Range": `bytes 0-9/${DATA.length}` }).end(DATA.subarray(0, 10)),
      "/v1/ticket/short": (_, response) =>
        response.writeHead(206, { "Content-Range": `bytes 10-19/${DATA.length}` }).end(DATA.subarray(10, 15)),
      "/v1/ticket/long": (_, response) =>
        response.writeHead(206, { "Content-Range": `bytes 10-19/${DATA.length}` }).end(DATA.subarray(10, 30)),
      "/v1/ticket/total": (_, response) =>
        response.writeHead(206, { "Content-Range": "bytes 10-19/20" }).end(DATA.subarray(10, 20)),
    };
    const url = await serve((request, response) => answers[request.url ?? ""]?.(request, response));
    const requests = requestsAt(url);
    for (const path of Object.keys(answers)) {
      const digest = path.slice("/v1/ticket/".length);
      await expect(requests.piece(digest, 10, 10, DATA.length, NEVER), digest).rejects.toThrow();
    }
  });

  it("ends when it is aborted", async () => {
    const url = await serve((_, response) => {
      response.writeHead(206, { "Content-Range": `bytes 0-9/${DATA.length}` });
      response.write(DATA.subarray(0, 5));
    });
    const abort = new AbortController();
    const piece = requestsAt(url).piece("d1", 0, 10, DATA.length, abort.signal);
    setTimeout(() => abort.abort(), 50);
    await expect(piece).rejects.toThrow();
  });

  it("comes in larger ones over a fast link, up to 1 MB", async () => {
    const url = await serve((request, response) => ranged(DATA, request, response));
    const requests = requestsAt(url);
    expect(requests.pieceBytes).toBe(262_144);
    for (let i = 0; i < 4; i++) await requests.piece("d1", 0, 10, DATA.length, NEVER);
    expect(requests.pieceBytes).toBe(1_048_576);
  });

  it("is asked for over HTTPS alone, but for this machine", () => {
    for (const url of ["http://192.168.1.5/v1/x/", "ftp://127.0.0.1/", "v1/x/", ""]) {
      expect(RangeRequests.at(url)).toBeNull();
    }
    expect(requestsAt("https://192.168.1.5/v1/x/").pieceBytes).toBeGreaterThan(0);
  });
});

describe("an order with an address for its blobs", () => {
  const blobOf = (coordinator: Coordinator, url: string | undefined) =>
    coordinator.blobs.get(url?.split("/").at(-1) ?? "");

  async function within(rig: Rig, isSo: () => boolean): Promise<void> {
    for (let i = 0; i < 300 && !isSo(); i++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      rig.clock.advance(0.05);
    }
    expect(isSo()).toBe(true);
  }

  it("is fetched from there, without a block over MQTT", async () => {
    const rig = await new Rig().start();
    const bulk = await serve((request, response) =>
      ranged(blobOf(rig.coordinator, request.url) ?? new Uint8Array(), request, response),
    );
    const weights = await rig.coordinator.publish(DATA);
    await rig.coordinator.send("order", await rig.coordinator.order({ bulk, weights }));
    await within(rig, () => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.count("get")).toBe(0);
    expect(rig.coordinator.report().bytes_down).toBeGreaterThan(450_000);
    expect(rig.agent.status.current.log.some((entry) => entry.kind === "https" && !entry.isSent)).toBe(true);
    await rig.stop();
  });

  it("is fetched over MQTT from where that address fails", async () => {
    const rig = await new Rig().start();
    let answers = 0;
    const bulk = await serve((request, response) => {
      answers += 1;
      const blob = blobOf(rig.coordinator, request.url);
      if (blob === undefined || answers > 2) response.writeHead(503).end();
      else ranged(blob, request, response);
    });
    const weights = await rig.coordinator.publish(DATA);
    await rig.coordinator.send("order", await rig.coordinator.order({ bulk, weights }));
    await within(rig, () => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.count("get")).toBeGreaterThan(0);
    expect(rig.coordinator.asked()).toEqual([weights.digest]);
    await rig.stop();
  });

  it("is fetched over MQTT where the address cannot be used", async () => {
    const rig = await new Rig().start();
    await rig.coordinator.send("order", await rig.coordinator.order({ bulk: "http://192.168.1.5:8080/v1/x/" }));
    await within(rig, () => rig.agent.status.current.roundsDone === 1);
    expect(rig.coordinator.asked()).toHaveLength(3);
    await rig.stop();
  });

  it("stops asking when another order takes its place", async () => {
    const rig = await new Rig().start();
    let isClosed = false;
    const bulk = await serve((request) => {
      request.socket.on("close", () => {
        isClosed = true;
      });
    });
    await rig.coordinator.send("order", await rig.coordinator.order({ bulk }));
    await within(rig, () => rig.state === "fetching");
    await new Promise((resolve) => setTimeout(resolve, 50));
    await rig.coordinator.send("order", await rig.coordinator.order({ round: 2 }));
    await within(rig, () => rig.agent.status.current.roundsDone === 1 && isClosed);
    await rig.stop();
  });
});
