import { describe, expect, it } from "vitest";
import { IndexedDbRecords } from "../../src/store/indexedDbRecords";
import { MemoryRecords } from "../../src/store/memoryStore";
import type { Records } from "../../src/store/records";

const KINDS: [string, () => Records][] = [
  ["memory", () => new MemoryRecords()],
  ["IndexedDB", () => new IndexedDbRecords(`records-${Math.random()}`)],
];

describe.each(KINDS)("records in %s", (_, make) => {
  it("keep values as they were", async () => {
    const records = make();
    const value = { seed: 2n ** 63n, bytes: Uint8Array.of(1, 2), none: null, list: [1.5] };
    await records.put("work/a", value);
    value.list.push(2);
    expect(await records.get("work/a")).toEqual({ ...value, list: [1.5] });
    await records.put("work/a", 7);
    expect(await records.get("work/a")).toBe(7);
    expect(await records.get("work/b")).toBeUndefined();
  });

  it("are listed by prefix and deleted", async () => {
    const records = make();
    for (const key of ["work/b", "work/a", "settled", "worker"]) await records.put(key, key);
    expect(await records.keys("work/")).toEqual(["work/a", "work/b"]);
    await records.delete("work/a");
    await records.delete("work/a");
    expect(await records.keys("work/")).toEqual(["work/b"]);
    expect(await records.keys("")).toHaveLength(3);
  });
});

describe("records in IndexedDB", () => {
  it("are there for the next page", async () => {
    const first = new IndexedDbRecords("shared");
    await first.put("settled", ["x"]);
    await first.close();
    expect(await new IndexedDbRecords("shared").get("settled")).toEqual(["x"]);
  });
});
