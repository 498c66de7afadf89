import { describe, expect, it } from "vitest";
import { FileStore } from "../../src/store/fileStore";
import type { Files } from "../../src/store/files";
import { IndexedDbFiles } from "../../src/store/indexedDbStore";
import { MemoryFiles } from "../../src/store/memoryStore";
import { openStore } from "../../src/store/openStore";
import { bytesOf, refOf } from "../agent/coordinator";

const A = bytesOf(5_000, 3);
const B = bytesOf(4_000, 5);

let databases = 0;
const KINDS: [string, () => Promise<Files>][] = [
  ["memory", async () => new MemoryFiles()],
  ["IndexedDB", () => IndexedDbFiles.open(`test-${databases++}`)],
];

describe.each(KINDS)("a store in %s", (_, make) => {
  async function filled(files: Files, data: Uint8Array, quotaBytes = 0): Promise<FileStore> {
    const store = new FileStore(files, { quotaBytes });
    const ref = await refOf(data);
    await store.append(ref, data);
    await store.complete(ref);
    return store;
  }

  it("gives back what was put together, checked", async () => {
    const files = await make();
    const store = new FileStore(files, { pieceBytes: 1_000 });
    const ref = await refOf(A);
    for (let at = 0; at < A.length; at += 700) await store.append(ref, A.subarray(at, at + 700));
    expect(await store.received(ref)).toBe(A.length);
    expect(await store.has(ref.digest)).toBe(false);
    await store.complete(ref);
    expect(await store.has(ref.digest)).toBe(true);
    expect(await store.read(ref.digest)).toEqual(A);
    expect(await store.usage()).toMatchObject({ bytes: A.length, blobs: 1 });
  });

  it("is opened anew with what was there, whole or in part", async () => {
    const files = await make();
    const [whole, part] = [await refOf(A), await refOf(B)];
    const store = await filled(files, A);
    await store.append(part, B.subarray(0, 1_500));
    await store.flush();
    await store.append(part, B.subarray(1_500, 1_600)); // lost with the tab
    const again = new FileStore(files);
    expect(await again.read(whole.digest)).toEqual(A);
    expect(await again.received(part)).toBe(1_500);
    await again.append(part, B.subarray(1_500));
    await again.complete(part);
    expect(await again.read(part.digest)).toEqual(B);
  });

  it("drops what arrived with another digest, and begins at 0", async () => {
    const store = new FileStore(await make());
    const ref = await refOf(A);
    await store.append(
      ref,
      A.map((byte, i) => (i === 9 ? byte ^ 1 : byte)),
    );
    await expect(store.complete(ref)).rejects.toMatchObject({ code: "artifact-corrupt" });
    expect(await store.received(ref)).toBe(0);
    expect(await store.has(ref.digest)).toBe(false);
    await store.append(ref, A.subarray(1));
    await expect(store.complete(ref)).rejects.toThrow("4999 bytes");
  });

  it("drops a stored blob whose bytes have changed", async () => {
    const files = await make();
    const store = await filled(files, A);
    const { digest } = await refOf(A);
    await files.write(`blob-${digest}`, B);
    await expect(store.read(digest)).rejects.toThrow("it was dropped");
    expect(await store.has(digest)).toBe(false);
  });

  it("lets the longest unused go for what is wanted, but nothing pinned", async () => {
    const files = await make();
    const store = new FileStore(files, { quotaBytes: 13_000 });
    const blobs = [bytesOf(4_000, 3), bytesOf(4_000, 7), bytesOf(4_000, 11)];
    const refs = await Promise.all(blobs.map(refOf));
    for (const [i, blob] of blobs.entries()) {
      await store.pin(refs.slice(i, i + 1).map((ref) => ref.digest));
      if (i === 2) await store.pin([refs[0]?.digest ?? "", refs[2]?.digest ?? ""]);
      await store.append(refs[i] as never, blob);
      await store.complete(refs[i] as never);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    const fourth = bytesOf(3_500, 13);
    await store.append(await refOf(fourth), fourth);
    expect(await Promise.all(refs.map((ref) => store.has(ref.digest)))).toEqual([true, false, true]);
    const fifth = bytesOf(9_000, 17);
    await expect(store.append(await refOf(fifth), fifth)).rejects.toMatchObject({ code: "store-full" });
    expect(await store.has(refs[0]?.digest ?? "")).toBe(true);
  });

  it("refuses a name that is no digest, and clears", async () => {
    const store = await filled(await make(), A);
    await expect(store.has("../work")).rejects.toThrow("64 lower-case hex digits");
    await store.clear();
    expect(await store.usage()).toMatchObject({ bytes: 0, blobs: 0 });
  });

  it("forgets one blob", async () => {
    const store = await filled(await make(), A);
    const { digest } = await refOf(A);
    await store.delete(digest);
    expect(await store.has(digest)).toBe(false);
    await store.delete(digest);
  });
});

/** Takes `limit` bytes, whatever its owner was promised. */
class FullFiles extends MemoryFiles {
  constructor(private readonly limit: number) {
    super();
  }

  override async write(name: string, data: Uint8Array): Promise<void> {
    const others = (await this.list()).filter((file) => file.name !== name);
    const used = others.reduce((sum, file) => sum + file.size, 0);
    if (used + data.length > this.limit) throw new DOMException("no room", "QuotaExceededError");
    await super.write(name, data);
  }
}

describe("a store whose browser promised more than it has", () => {
  it("makes room when a write fails, and keeps what is pinned", async () => {
    const [a, b] = [await refOf(A), await refOf(B)];
    const store = new FileStore(new FullFiles(9_500));
    await store.append(a, A);
    await store.complete(a);
    await store.append(b, B);
    await store.complete(b);
    expect(await store.has(a.digest)).toBe(true);
    const last = bytesOf(5_200, 9);
    const ref = await refOf(last);
    await store.pin([b.digest, ref.digest]);
    await store.append(ref, last);
    await store.complete(ref);
    expect(await Promise.all([a, b, ref].map(({ digest }) => store.has(digest)))).toEqual([false, true, true]);
  });

  it("says so when there is nothing to throw away", async () => {
    const store = new FileStore(new FullFiles(4_500));
    const ref = await refOf(A);
    await store.append(ref, A);
    await expect(store.complete(ref)).rejects.toThrow(/5000 bytes cannot be written \(.*no room\); free storage/);
    expect(await store.usage()).toMatchObject({ bytes: 0, blobs: 0 });
  });
});

describe("quota", () => {
  it("is the least of the owner's and the browser's", async () => {
    const store = new FileStore(new MemoryFiles(), { quotaBytes: 9_000, available: async () => 4_500 });
    expect((await store.usage()).quota).toBe(4_500);
    await expect(store.append(await refOf(A), A)).rejects.toThrow("quota of 4500");
    const small = new FileStore(new MemoryFiles(), { quotaBytes: 100, available: async () => 4_500 });
    expect((await small.usage()).quota).toBe(100);
  });
});

describe("opening", () => {
  it("takes IndexedDB where there is no OPFS, and says so", async () => {
    const { store, kind, reason } = await openStore("fallback");
    expect(kind).toBe("indexeddb");
    expect(reason).toContain("no opfs here");
    const ref = await refOf(A);
    await store.append(ref, A);
    await store.complete(ref);
    // As the trainer's worker does.
    expect(await (await openStore("fallback")).store.read(ref.digest)).toEqual(A);
  });

  it("takes memory where there is neither", async () => {
    const { indexedDB } = globalThis;
    Object.defineProperty(globalThis, "indexedDB", { value: undefined, configurable: true });
    try {
      const { kind, reason } = await openStore("nothing");
      expect(kind).toBe("memory");
      expect(reason).toContain("no indexeddb here");
    } finally {
      Object.defineProperty(globalThis, "indexedDB", { value: indexedDB, configurable: true, writable: true });
    }
  });
});
