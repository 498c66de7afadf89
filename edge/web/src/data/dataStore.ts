/**
 * This device's examples, by the source they came from: picked arrays and pictures, camera pictures, recorded motion.
 *
 * They lie in an IndexedDB of their own and nothing here sends or exports them. Page and worker open the same store by
 * name. Pictures are kept as the files they were: only an artifact says at which size it wants them. What they became
 * for the last artifact is kept beside them, so that not every training decodes every photograph.
 */

import { DataError, StoreFull } from "../contracts/errors";
import type { InputSpec } from "../contracts/manifest";
import { done, openDatabase, result, withPrefix } from "../store/indexedDb";
import type { DataSource, DataSummary } from "./dataSource";
import type { LocalData } from "./examples";
import { type DecodePicture, decodePicture } from "./imageDecoder";
import { joined } from "./joining";
import type { LabelledPicture, PickedSource } from "./pickedFiles";
import { fitPicture } from "./pixels";
import {
  type LabelledWindow,
  misfit,
  type NewPart,
  ofArrays,
  ofPicture,
  ofWindow,
  ofWindows,
  type Part,
  pictureSize,
  type SourceInfo,
  type SourceKind,
  type StoredSource,
} from "./sources";

export type { LabelledWindow, SourceInfo, SourceKind } from "./sources";

const SOURCES = "sources";
const PARTS = "parts";
/** Source -> its pictures at one size, one after the other. */
const FITTED = "fitted";
const STORES = [SOURCES, PARTS, FITTED];

interface Fitted {
  readonly size: string;
  readonly labels: readonly string[];
  readonly values: Uint8Array;
}

export class DataStore implements DataSource {
  readonly #database: IDBDatabase;
  readonly #decode: DecodePicture;
  readonly #now: () => number;

  private constructor(database: IDBDatabase, decode: DecodePicture, now: () => number) {
    this.#database = database;
    this.#decode = decode;
    this.#now = now;
  }

  /** The store called `name`, made when there is none. */
  static async open(
    name: string,
    { decode = decodePicture, now = Date.now }: { decode?: DecodePicture; now?: () => number } = {},
  ): Promise<DataStore> {
    return new DataStore(await openDatabase(databaseName(name), STORES), decode, now);
  }

  /**
   * Adds what was picked; pictures are read one by one, `onPicture` is told how many are.
   *
   * @throws DataError naming the file that cannot be read, StoreFull without room; nothing is added then.
   */
  async add(source: PickedSource, onPicture: (read: number) => void = () => {}): Promise<SourceInfo> {
    const place = { id: `picked-${crypto.randomUUID()}`, kind: source.kind, name: source.name };
    if (source.kind === "arrays") {
      const { x, y, where } = source.data;
      const count = x.shape[0] ?? 0;
      if (count === 0) throw new DataError(`${where}: no examples in it; give at least one`);
      const labels = { values: [y.values[0]] as string[] | number[], shape: y.shape };
      return this.#put(place, [ofArrays(source.data)], count, labels);
    }
    let info: SourceInfo | null = null;
    try {
      for (const picked of source.pictures) {
        const picture = await picked.read();
        await this.#decode(picture);
        info = await this.#put(place, [ofPicture(picture)]);
        onPicture(info.count);
      }
    } catch (error) {
      await this.remove(place.id);
      throw error;
    }
    if (info === null) throw new DataError(`${source.name}: no pictures in it; give at least one`);
    return info;
  }

  /** Adds a camera picture to those taken before. */
  addCapture(picture: LabelledPicture): Promise<SourceInfo> {
    return this.#put({ id: "camera", kind: "camera", name: "camera" }, [ofPicture(picture)]);
  }

  /** Adds windows of a recording to those recorded before. */
  async addRecording(windows: readonly LabelledWindow[]): Promise<SourceInfo> {
    if (windows.length === 0) throw new DataError("the recording is shorter than one window; record longer");
    return this.#put({ id: "motion", kind: "motion", name: "motion" }, windows.map(ofWindow));
  }

  /** Oldest first, which is the order their examples are numbered in. */
  async list(): Promise<SourceInfo[]> {
    return (await this.#stored()).map(({ y: _, ...info }) => info);
  }

  /** Deletes one source with all its examples. */
  async remove(id: string): Promise<void> {
    const transaction = this.#database.transaction(STORES, "readwrite");
    transaction.objectStore(SOURCES).delete(id);
    transaction.objectStore(PARTS).delete(withPrefix(`${id}/`));
    transaction.objectStore(FITTED).delete(id);
    await done(transaction);
  }

  /** Deletes every example. */
  async clear(): Promise<void> {
    const transaction = this.#database.transaction(STORES, "readwrite");
    for (const store of STORES) transaction.objectStore(store).clear();
    await done(transaction);
  }

  async summary(): Promise<DataSummary> {
    const found = await this.#stored();
    const labels: Record<string, number> = {};
    for (const source of found) {
      for (const [label, count] of Object.entries(source.labels)) labels[label] = (labels[label] ?? 0) + count;
    }
    return { numExamples: found.reduce((sum, { count }) => sum + count, 0), labels, error: misfit(found) };
  }

  async load(input: InputSpec): Promise<LocalData> {
    const parts: LocalData[] = [];
    for (const source of await this.#stored()) {
      if (source.kind === "images" || source.kind === "camera") {
        parts.push(await this.#pictures(source, input));
        continue;
      }
      const found = await result<Part[]>(this.#store(PARTS).getAll(withPrefix(`${source.id}/`)));
      parts.push(...found.flatMap((part) => (part.type === "arrays" ? [part.data] : [])));
      const windows = found.flatMap((part) => (part.type === "window" ? [part.window] : []));
      parts.push(...ofWindows(source.name, windows));
    }
    return joined(parts, input);
  }

  close(): void {
    this.#database.close();
  }

  /** The pictures of one source at the artifact's size; those that were at it the last time are not decoded again. */
  async #pictures(source: StoredSource, input: InputSpec): Promise<LocalData> {
    const size = pictureSize(source.name, input);
    const each = size.channels * size.height * size.width;
    const keys = await result(this.#store(PARTS).getAllKeys(withPrefix(`${source.id}/`)));
    const before = await result<Fitted | undefined>(this.#store(FITTED).get(source.id));
    const values = new Uint8Array(keys.length * each);
    const labels: string[] = [];
    if (before?.size === String(input.shape) && before.labels.length <= keys.length) {
      values.set(before.values);
      labels.push(...before.labels);
    }
    for (const key of keys.slice(labels.length)) {
      // One by one: a folder of photographs is larger than a phone's memory.
      const part = await result<Part | undefined>(this.#store(PARTS).get(key));
      if (part?.type !== "picture") throw new DataError(`${source.name}: was deleted while it was read; start again`);
      values.set(fitPicture(await this.#decode(part.picture), size), labels.length * each);
      labels.push(part.picture.label);
    }
    if (labels.length > (before?.labels.length ?? 0) || before?.size !== String(input.shape)) {
      await this.#keepFitted(source.id, { size: String(input.shape), labels, values });
    }
    const shape = [labels.length, ...input.shape];
    return { where: source.name, x: { values, shape }, y: { values: labels, shape: [labels.length] } };
  }

  /** Only while the source is there: it may be deleted while its pictures are decoded, and then nothing may be left. */
  async #keepFitted(id: string, fitted: Fitted): Promise<void> {
    const transaction = this.#database.transaction([SOURCES, FITTED], "readwrite");
    const finished = done(transaction);
    if ((await result(transaction.objectStore(SOURCES).count(id))) > 0) transaction.objectStore(FITTED).put(fitted, id);
    await finished.catch(() => {}); // no room: they are decoded again the next time
  }

  async #put(
    { id, kind, name }: { id: string; kind: SourceKind; name: string },
    parts: readonly NewPart[],
    count = parts.length,
    y: StoredSource["y"] = { values: [parts[0]?.labels[0] ?? ""], shape: [count] },
  ): Promise<SourceInfo> {
    const transaction = this.#database.transaction([SOURCES, PARTS], "readwrite");
    const finished = done(transaction);
    try {
      const all = await result<StoredSource[]>(transaction.objectStore(SOURCES).getAll());
      const before = all.find((source) => source.id === id);
      // Files of one pick come within a millisecond: a later one stays a later one.
      const newest = Math.max(0, ...all.map((source) => source.addedAt));
      const labels: Record<string, number> = { ...before?.labels };
      for (const label of parts.flatMap((part) => part.labels)) labels[label] = (labels[label] ?? 0) + 1;
      const stored: StoredSource = {
        id,
        kind,
        name,
        count: (before?.count ?? 0) + count,
        bytes: (before?.bytes ?? 0) + parts.reduce((sum, { bytes }) => sum + bytes, 0),
        labels,
        addedAt: before?.addedAt ?? Math.max(this.#now(), newest + 1),
        y,
      };
      parts.forEach(({ part }, index) => {
        // Keys sort as text: fifteen digits keep examples in the order they were added.
        const number = String((before?.count ?? 0) + index).padStart(15, "0");
        transaction.objectStore(PARTS).put(part, `${id}/${number}`);
      });
      transaction.objectStore(SOURCES).put(stored, id);
      await finished;
      const { y: _, ...info } = stored;
      return info;
    } catch (cause) {
      await finished.catch(() => {});
      if ((cause as Error | null)?.name !== "QuotaExceededError") throw cause;
      throw new StoreFull(`${name}: no room for ${count} more examples; delete some, or other sites' data`, { cause });
    }
  }

  async #stored(): Promise<StoredSource[]> {
    const found = await result<StoredSource[]>(this.#store(SOURCES).getAll());
    return found.sort((a, b) => a.addedAt - b.addedAt);
  }

  #store(name: string): IDBObjectStore {
    return this.#database.transaction(name, "readonly").objectStore(name);
  }
}

/** Deletes the store called `name` itself, once every page and worker has closed it. */
export async function destroyDataStore(name: string): Promise<void> {
  await result(indexedDB.deleteDatabase(databaseName(name)));
}

function databaseName(name: string): string {
  return `${name}-data`;
}
