import { describe, expect, it } from "vitest";
import { DataError } from "../../src/contracts/errors";
import type { InputSpec } from "../../src/contracts/manifest";
import { DataStore, destroyDataStore } from "../../src/data/dataStore";
import type { LocalData } from "../../src/data/examples";
import type { DecodePicture } from "../../src/data/imageDecoder";
import { type PickedFile, readPicked } from "../../src/data/pickedFiles";

const text = (content: string) => new TextEncoder().encode(content);

/** Files whose four bytes are the red of a 2 x 2 picture; node has no decoder of its own. */
const decode: DecodePicture = async (file) => {
  if (file.bytes.length !== 4) throw new DataError(`${file.name}: is not a readable image (4 bytes wanted)`);
  return { width: 2, height: 2, rgba: Uint8Array.from([...file.bytes].flatMap((red) => [red, 0, 0, 255])) };
};

const input = (fields: Partial<InputSpec>): InputSpec => ({
  layout: "features",
  shape: [2],
  dtype: "float32",
  mean: [0],
  std: [1],
  scale: 1,
  augment: [],
  vocabulary: 0,
  ...fields,
});

const arrays = (where: string, values: number[], labels: readonly string[] | BigInt64Array): LocalData => ({
  where,
  x: { values: Float32Array.from(values), shape: [labels.length, values.length / labels.length] },
  y: { values: labels, shape: [labels.length] },
});

const picked = (label: string, ...bytes: number[]) => {
  const found = picture(label, ...bytes);
  return { name: found.name, label, read: async () => found };
};

const picture = (label: string, ...bytes: number[]) => ({
  bytes: Uint8Array.from(bytes),
  type: "image/png",
  name: `photos/${label}/1.png`,
  label,
});

let number = 0;
const fresh = () => {
  number += 1;
  return `test-${number}`;
};

describe("the data store", () => {
  it("keeps sources in the order they were added, and another opening of it has them", async () => {
    const name = fresh();
    const page = await DataStore.open(name, { decode, now: () => 5 });
    await page.add({ kind: "arrays", name: "z.npz", data: arrays("z.npz", [1, 2, 3, 4], ["a", "b"]) });
    await page.add({ kind: "arrays", name: "a.npz", data: arrays("a.npz", [5, 6], ["b"]) });
    const worker = await DataStore.open(name, { decode });
    expect((await worker.list()).map(({ name, count, bytes, labels }) => ({ name, count, bytes, labels }))).toEqual([
      { name: "z.npz", count: 2, bytes: 18, labels: { a: 1, b: 1 } },
      { name: "a.npz", count: 1, bytes: 9, labels: { b: 1 } },
    ]);
    expect(await worker.summary()).toEqual({ numExamples: 3, labels: { a: 1, b: 2 }, error: "" });
    const data = await worker.load(input({}));
    expect([...data.x.values]).toEqual([1, 2, 3, 4, 5, 6]);
    expect(data.x.shape).toEqual([3, 2]);
    expect(data.y.values).toEqual(["a", "b", "b"]);
  });

  it("sizes pictures as the artifact wants them, captures behind picked ones", async () => {
    const store = await DataStore.open(fresh(), { decode });
    await store.add({
      kind: "images",
      name: "photos",
      pictures: [picked("cat", 1, 2, 3, 4), picked("dog", 9, 9, 9, 9)],
    });
    await store.addCapture(picture("dog", 5, 6, 7, 8));
    await store.addCapture(picture("owl", 8, 8, 8, 8));
    expect((await store.list()).map(({ id, count }) => [id.slice(0, 6), count])).toEqual([
      ["picked", 2],
      ["camera", 2],
    ]);
    const colour = await store.load(input({ layout: "chw", shape: [3, 2, 2] }));
    expect(colour.x.shape).toEqual([4, 3, 2, 2]);
    expect([...colour.x.values.slice(24, 32)].map(Number)).toEqual([5, 6, 7, 8, 0, 0, 0, 0]);
    expect(colour.y.values).toEqual(["cat", "dog", "dog", "owl"]);
    const grey = await store.load(input({ layout: "chw", shape: [1, 1, 1] }));
    expect([...grey.x.values].map(Number)).toEqual([1, 3, 2, 2]); // 0.299 of the red
    await expect(store.load(input({ shape: [12] }))).rejects.toThrow("photos: pictures need a chw input");
  });

  it("keeps windows of motion", async () => {
    const store = await DataStore.open(fresh());
    await store.addRecording([{ values: Float32Array.of(1, 2, 3, 4), shape: [2, 2], label: "walk" }]);
    const more = await store.addRecording([{ values: Float32Array.of(5, 6, 7, 8), shape: [2, 2], label: "sit" }]);
    expect(more).toMatchObject({ id: "motion", count: 2, bytes: 32, labels: { walk: 1, sit: 1 } });
    const data = await store.load(input({ shape: [4] }));
    expect(data.x.shape).toEqual([2, 4]);
    expect([...data.x.values]).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    await expect(store.addRecording([])).rejects.toThrow("shorter than one window");
  });

  it("names the source that does not fit", async () => {
    const store = await DataStore.open(fresh(), { decode });
    expect((await store.summary()).error).toContain("no examples are on this device");
    await expect(store.load(input({}))).rejects.toThrow("no examples are on this device");
    await store.add({ kind: "arrays", name: "a.npz", data: arrays("a.npz", [1, 2], ["a"]) });
    await store.add({ kind: "arrays", name: "wide.npz", data: arrays("wide.npz", [1, 2, 3], ["a"]) });
    await expect(store.load(input({}))).rejects.toThrow("wide.npz: examples have shape (3,), the artifact takes (2,)");
    await store.add({ kind: "arrays", name: "n.npz", data: arrays("n.npz", [1, 2], BigInt64Array.of(1n)) });
    expect((await store.summary()).error).toBe(
      "n.npz: labels are numbers, those of a.npz are class names; remove one of the two",
    );
    const broken = {
      kind: "images",
      name: "photos",
      pictures: [picked("cat", 1, 2, 3, 4), picked("cat", 1)],
    } as const;
    await expect(store.add(broken)).rejects.toThrow("photos/cat/1.png: is not a readable image");
    expect(await store.list()).toHaveLength(3); // nothing of the broken one
  });

  it("decodes a picture once for a size, and those that came since", async () => {
    const decoded: string[] = [];
    const counting: DecodePicture = (file) => {
      decoded.push(file.name);
      return decode(file);
    };
    const store = await DataStore.open(fresh(), { decode: counting });
    const small = input({ layout: "chw", shape: [1, 1, 1] });
    await store.addCapture(picture("cat", 8, 8, 8, 8));
    const first = await store.load(small);
    await store.addCapture(picture("dog", 4, 4, 4, 4));
    const second = await store.load(small);
    expect(await store.load(small)).toEqual(second);
    expect(decoded).toEqual(["photos/cat/1.png", "photos/dog/1.png"]);
    expect([...second.x.values].map(Number)).toEqual([Number(first.x.values[0]), 1]);
    expect(second.y.values).toEqual(["cat", "dog"]);
    await store.load(input({ layout: "chw", shape: [3, 2, 2] }));
    expect(decoded).toHaveLength(4);
  });

  it("keeps nothing of a source that is deleted while it is read", async () => {
    const name = fresh();
    const page = await DataStore.open(name, { decode });
    const deleting: DecodePicture = async (file) => {
      await page.clear();
      return decode(file);
    };
    await page.addCapture(picture("cat", 8, 8, 8, 8));
    await (await DataStore.open(name, { decode: deleting })).load(input({ layout: "chw", shape: [1, 1, 1] }));
    expect(await recordsOf(name)).toEqual({ fitted: 0, parts: 0, sources: 0 });
  });

  it("removes one source, then everything: nothing is left in the database", async () => {
    const name = fresh();
    const store = await DataStore.open(name, { decode });
    const first = await store.add({ kind: "arrays", name: "a.npz", data: arrays("a.npz", [1, 2], ["a"]) });
    await store.addCapture(picture("dog", 5, 6, 7, 8));
    await store.remove(first.id);
    await store.load(input({ layout: "chw", shape: [1, 2, 2] }));
    expect((await store.list()).map(({ id }) => id)).toEqual(["camera"]);
    expect(await recordsOf(name)).toEqual({ fitted: 1, parts: 1, sources: 1 });
    await store.clear();
    expect(await recordsOf(name)).toEqual({ fitted: 0, parts: 0, sources: 0 });
    expect(await store.summary()).toMatchObject({ numExamples: 0, labels: {} });
    store.close();
    await destroyDataStore(name);
    expect((await indexedDB.databases()).map((database) => database.name)).not.toContain(`${name}-data`);
  });
});

/** What the database holds, asked of the database and not of the store. */
async function recordsOf(name: string): Promise<Record<string, number>> {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const request = indexedDB.open(`${name}-data`);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const counts: Record<string, number> = {};
  for (const store of database.objectStoreNames) {
    counts[store] = await new Promise<number>((resolve) => {
      const request = database.transaction(store).objectStore(store).count();
      request.onsuccess = () => resolve(request.result);
    });
  }
  database.close();
  return counts;
}

describe("what the owner picks", () => {
  const file = (path: string, content = "abcd"): PickedFile => ({
    path,
    type: "",
    arrayBuffer: async () => text(content).buffer as ArrayBuffer,
  });

  it("becomes pictures by folder and tables, in the order of their paths, hidden and other files left out", async () => {
    const sources = await readPicked([
      file("mine/b/2.PNG"),
      file("mine/table.csv", "f,label\n1,2\n"),
      file("mine/a/1.jpg"),
      file("mine/.DS_Store"),
      file("mine/.hidden/3.png"),
      file("mine/b/notes.txt"),
    ]);
    expect(sources.map(({ kind, name }) => [kind, name])).toEqual([
      ["arrays", "mine/table.csv"],
      ["images", "mine"],
    ]);
    const images = sources[1];
    expect(images?.kind === "images" && images.pictures.map(({ name, label }) => [name, label])).toEqual([
      ["mine/a/1.jpg", "a"],
      ["mine/b/2.PNG", "b"],
    ]);
  });

  it.each([
    [[file("1.png")], "1.png: lies in no folder that says its class"],
    [[file("mine/a/1.png"), file("mine/2.png")], "mine/2.png: lies in no folder that says its class"],
    [[file("notes.txt")], "none of 1 files can be read"],
    [[file("x.npz")], "x.npz: cannot be read (it is no ZIP archive)"],
    [[{ ...file("t.csv"), arrayBuffer: async () => Uint8Array.of(0xff, 0xfe).buffer }], "t.csv: is no UTF-8 text"],
  ])("%#: is refused by name", async (files, message) => {
    await expect(readPicked(files as PickedFile[])).rejects.toThrow(message);
  });
});
