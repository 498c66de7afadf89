import { describe, expect, it } from "vitest";
import { Download, StallTimer, Upload } from "../../src/transport/blocks";

const REF = { digest: "a".repeat(64), size: 100, encoding: "raw" as const, encoded_size: 100 };
const grant = (offset: number, window = 2, block_bytes = 16) => ({
  assignment_id: "x",
  digest: REF.digest,
  offset,
  block_bytes,
  window,
});
const block = (offset: number, length: number, total = 100) => ({
  digest: REF.digest,
  offset,
  total,
  data: new Uint8Array(length).fill(offset),
});

describe("a download", () => {
  it("asks for its window, and for more as blocks come", () => {
    const download = new Download(REF, 0, 0, 16, 2);
    expect(download.requests(0).map((get) => [get.offset, get.length])).toEqual([
      [0, 16],
      [16, 16],
    ]);
    expect(download.requests(0)).toEqual([]);
    expect(download.receive(block(0, 16), 0.1)).toHaveLength(1);
    expect(download.requests(0.1).map((get) => get.offset)).toEqual([32]);
  });

  it("begins where it was, and asks for a short block at the end", () => {
    const download = new Download(REF, 90, 0, 16, 2);
    expect(download.requests(0).map((get) => [get.offset, get.length])).toEqual([[90, 10]]);
    expect(download.receive(block(90, 10), 0)).toHaveLength(1);
    expect(download.isComplete).toBe(true);
  });

  it("keeps what comes early and gives it out in order", () => {
    const download = new Download(REF, 0, 0, 16, 2);
    download.requests(0);
    expect(download.receive(block(16, 16), 0)).toEqual([]);
    expect(download.receive(block(0, 16), 0).map((data) => data[0])).toEqual([0, 16]);
    expect(download.receive(block(0, 16), 0)).toEqual([]);
    expect(download.offset).toBe(32);
  });

  it("asks again after two seconds, then after four", () => {
    const download = new Download(REF, 0, 0, 16, 1);
    expect(download.requests(0)).toHaveLength(1);
    expect(download.requests(1.9)).toHaveLength(0);
    expect(download.requests(2)).toHaveLength(1);
    expect(download.requests(5.9)).toHaveLength(0);
    expect(download.requests(6)).toHaveLength(1);
  });

  it("rejects what cannot have been asked for, and is unharmed", () => {
    const download = new Download(REF, 0, 0, 16, 2);
    expect(() => download.receive(block(0, 16, 101), 0)).toThrow("101 bytes in all, 100 ordered");
    expect(() => download.receive(block(96, 16), 0)).toThrow("outside 100 bytes");
    expect(() => download.receive(block(0, 17), 0)).toThrow("longer than 16");
    expect(() => download.receive(block(0, 0), 0)).toThrow();
    expect(download.offset).toBe(0);
  });
});

describe("a hostile broker", () => {
  it("has a download keep no more early bytes than it asked for, and does not stop it", () => {
    // Blocks that overlap, at every offset of the window.
    const large = { ...REF, size: 10_000, encoded_size: 10_000 };
    const download = new Download(large, 0, 0, 500, 4);
    download.requests(0);
    let kept = 0;
    for (let offset = 1; offset <= 2000; offset += 1) {
      const data = new Uint8Array(500);
      download.receive({ digest: REF.digest, offset, total: 10_000, data }, 0.1);
    }
    for (const data of download.receive({ digest: REF.digest, offset: 0, total: 10_000, data: new Uint8Array(1) }, 0.2))
      kept += data.length;
    expect(kept).toBeGreaterThan(0);
    expect(kept).toBeLessThanOrEqual(4 * 500 + 1);
  });

  it("has an upload follow no grant further than there is memory for", () => {
    const large = { ...REF, size: 2 ** 30, encoded_size: 2 ** 30 };
    for (const [size, window] of [
      [1, 2 ** 40],
      [2 ** 40, 2 ** 40],
      [131_072, 1_000_000],
    ] as const) {
      const upload = new Upload(large, 0);
      upload.offered();
      upload.granted(grant(0, window, size), 0);
      const spans = upload.sends();
      expect(spans.length).toBeLessThanOrEqual(16);
      expect(spans.reduce((sum, span) => sum + span.length, 0)).toBeLessThanOrEqual(16 * 262_144);
    }
  });
});

describe("an upload", () => {
  it("sends what is granted, each block once", () => {
    const upload = new Upload(REF, 0);
    expect(upload.sends()).toEqual([]);
    upload.granted(grant(0), 0);
    expect(upload.sends()).toEqual([
      { offset: 0, length: 16 },
      { offset: 16, length: 16 },
    ]);
    expect(upload.sends()).toEqual([]);
    upload.granted(grant(16), 0);
    expect(upload.sends()).toEqual([{ offset: 32, length: 16 }]);
  });

  it("sends a block again when its grant is repeated, once", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(0), 0);
    upload.sends();
    upload.granted(grant(0), 0);
    expect(upload.sends().map((span) => span.offset)).toEqual([0, 16]);
    upload.granted(grant(0), 0);
    expect(upload.sends()).toEqual([]);
  });

  it("repeats a window once, though each of its blocks is answered again", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(0), 0);
    upload.sends();
    upload.granted(grant(0), 0); // taken for a loss, though the blocks are only late
    expect(upload.sends().map((span) => span.offset)).toEqual([0, 16]);
    upload.granted(grant(16), 0);
    upload.granted(grant(32), 0);
    expect(upload.sends().map((span) => span.offset)).toEqual([32, 48]);
    upload.granted(grant(32), 0); // the repeated ones, which were there already
    upload.granted(grant(32), 0);
    expect(upload.sends()).toEqual([]);
  });

  it("takes two answers over a new connection for one", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(0), 0);
    upload.sends();
    upload.reconnected(1);
    upload.offered();
    upload.granted(grant(32), 1); // of the block that went through before
    expect(upload.sends().map((span) => span.offset)).toEqual([32, 48]);
    upload.granted(grant(32), 1); // the offer's
    expect(upload.sends()).toEqual([]);
  });

  it("falls back only where a grant answers an offer", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(48), 0);
    upload.granted(grant(16), 0);
    expect(upload.confirmed).toBe(48);
    upload.offered();
    upload.granted(grant(16), 0);
    expect(upload.confirmed).toBe(16);
    expect(upload.sends()[0]?.offset).toBe(16);
  });

  it("goes on where it was when a grant rises after a stall, and takes the answer to its offer for no loss", () => {
    const upload = new Upload(REF, 0);
    upload.offered();
    upload.granted(grant(0), 0);
    upload.sends();
    expect(upload.isStalled(2)).toBe(true);
    upload.offered();
    upload.granted(grant(16), 3);
    expect(upload.sends()).toEqual([{ offset: 32, length: 16 }]);
    upload.granted(grant(32), 3);
    upload.granted(grant(32), 3);
    expect(upload.sends()).toEqual([{ offset: 48, length: 16 }]);
  });

  it("begins at what is granted after a new connection", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(0), 0);
    upload.sends();
    upload.reconnected(1);
    upload.offered();
    upload.granted(grant(16), 1);
    expect(upload.sends().map((span) => span.offset)).toEqual([16, 32]);
  });

  it("is complete when all is confirmed, and begins again where the whole was wrong", () => {
    const upload = new Upload(REF, 0);
    upload.granted(grant(100), 0);
    expect(upload.isComplete).toBe(true);
    upload.granted(grant(0, 8), 0);
    expect(upload.isComplete).toBe(false);
    expect(upload.sends()).toHaveLength(7);
  });

  it("rejects grants without sense", () => {
    const upload = new Upload(REF, 0);
    expect(() => upload.granted(grant(101), 0)).toThrow("grant at 101 of 100");
    expect(() => upload.granted(grant(-1), 0)).toThrow();
    expect(() => upload.granted(grant(0, 0), 0)).toThrow();
    expect(upload.isOfferOpen).toBe(true);
  });
});

describe("a stall timer", () => {
  it("waits longer on a slow link", () => {
    const timer = new StallTimer(0);
    for (let now = 4; now <= 40; now += 4) timer.progress(now);
    expect(timer.isStalled(44)).toBe(false);
    expect(timer.isStalled(40 + 16)).toBe(true);
    timer.restart(60);
    expect(timer.isStalled(61.9)).toBe(false);
    expect(timer.isStalled(62)).toBe(true);
  });
});
