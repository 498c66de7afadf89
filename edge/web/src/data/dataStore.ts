/**
 * This device's examples, by the source they came from: picked arrays and pictures, camera pictures, recorded motion.
 *
 * They lie in an IndexedDB of their own and nothing here sends or exports them. Page and worker open the same store by
 * name. Pictures are kept as the files they were: only an artifact says at which size it wants them.
 */

import { DataError, StoreFull } from "../contracts/errors";
import type { InputSpec } from "../contracts/manifest";
import { done, openDatabase, result, withPrefix } from "../store/indexedDb";
import type { DataSource, DataSummary } from "./dataSource";
import { type LocalData, shapeText, type Values } from "./examples";
import { type DecodePicture, decodePicture } from "./imageDecoder";
import { checkLabels, joined } from "./joining";
import type { LabelledPicture, PickedSource } from "./pickedFiles";
import { fitPicture, type PictureSize } from "./pixels";

export type SourceKind = "arrays" | "images" | "camera" | "motion";

/** One source as the owner sees it. */
export interface SourceInfo {
  readonly id: string;
  readonly kind: SourceKind;
  readonly name: string;
  readonly count: number;
  readonly bytes: number;
  /** Class name or number -> examples; of labels that are no classes, none. */
  readonly labels: Readonly<Record<string, number>>;
  /** Milliseconds since 1970. */
  readonly addedAt: number;
}

/** One recorded window, row-major [samples, channels]. */
export interface LabelledWindow {
  readonly values: Float32Array;
  readonly shape: readonly number[];
  readonly label: string;
}

interface StoredSource extends SourceInfo {
  /** What tells early whether sources go together: a label's shape, and one label. */
  readonly y: { readonly values: readonly string[] | readonly number[]; readonly shape: readonly number[] };
}

type Part =
  | { readonly type: "arrays"; readonly data: LocalData }
  | { readonly type: "picture"; readonly picture: LabelledPicture }
  | { readonly type: "window"; readonly window: LabelledWindow };

interface NewPart {
  readonly part: Part;
  readonly bytes: number;
  readonly labels: readonly string[];
}

const SOURCES = "sources";
const PARTS = "parts";
const MOST_LABELS = 1000;

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
    return new DataStore(await openDatabase(databaseName(name), [SOURCES, PARTS]), decode, now);
  }

  /** Adds what was picked; DataError naming the file when a picture of it cannot be read, and nothing is added. */
  async add(source: PickedSource, onPicture: (read: number) => void = () => {}): Promise<SourceInfo> {
    if (source.kind === "arrays") {
      const { data } = source;
      if ((data.x.shape[0] ?? 0) === 0) throw new DataError(`${data.where}: no examples in it; give at least one`);
      const y = { values: [data.y.values[0]] as string[] | number[], shape: data.y.shape };
      const bytes = data.x.values.byteLength + bytesOfLabels(data.y.values);
      const part: NewPart = { part: { type: "arrays", data }, bytes, labels: classesOf(data) };
      return this.#put({ id: newId(), kind: "arrays", name: source.name }, [part], data.x.shape[0] as number, y);
    }
    let read = 0;
    for (const picture of source.pictures) {
      await this.#decode(picture);
      read += 1;
      onPicture(read);
    }
    return this.#put({ id: newId(), kind: "images", name: source.name }, source.pictures.map(ofPicture));
  }

  /** Adds a camera picture to those taken before. */
  addCapture(picture: LabelledPicture): Promise<SourceInfo> {
    return this.#put({ id: "camera", kind: "camera", name: "camera" }, [ofPicture(picture)]);
  }

  /** Adds windows of a recording to those recorded before. */
  async addRecording(windows: readonly LabelledWindow[]): Promise<SourceInfo> {
    if (windows.length === 0) throw new DataError("the recording is shorter than one window; record longer");
    const parts = windows.map((window) => ({
      part: { type: "window", window } as const,
      bytes: window.values.byteLength,
      labels: [window.label],
    }));
    return this.#put({ id: "motion", kind: "motion", name: "motion" }, parts);
  }

  /** Oldest first, which is the order their examples are numbered in. */
  async list(): Promise<SourceInfo[]> {
    const found = await result<StoredSource[]>(this.#store(SOURCES, "readonly").getAll());
    return found.map(({ y: _, ...info }) => info).sort((a, b) => a.addedAt - b.addedAt || (a.id < b.id ? -1 : 1));
  }

  /** Deletes one source with all its examples. */
  async remove(id: string): Promise<void> {
    const transaction = this.#database.transaction([SOURCES, PARTS], "readwrite");
    transaction.objectStore(SOURCES).delete(id);
    transaction.objectStore(PARTS).delete(withPrefix(`${id}/`));
    await done(transaction);
  }

  /** Deletes every example. */
  async clear(): Promise<void> {
    const transaction = this.#database.transaction([SOURCES, PARTS], "readwrite");
    transaction.objectStore(SOURCES).clear();
    transaction.objectStore(PARTS).clear();
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
    for (const source of await this.list()) {
      const found = await result<Part[]>(this.#store(PARTS, "readonly").getAll(withPrefix(`${source.id}/`)));
      const arrays = found.flatMap((part) => (part.type === "arrays" ? [part.data] : []));
      const windows = found.flatMap((part) => (part.type === "window" ? [part.window] : []));
      const pictures = found.flatMap((part) => (part.type === "picture" ? [part.picture] : []));
      parts.push(...arrays, ...ofWindows(source.name, windows));
      if (pictures.length > 0) parts.push(await this.#decoded(source.name, pictures, input));
    }
    return joined(parts, input);
  }

  close(): void {
    this.#database.close();
  }

  async #decoded(where: string, pictures: readonly LabelledPicture[], input: InputSpec): Promise<LocalData> {
    const size = pictureSize(where, input);
    const each = size.channels * size.height * size.width;
    const values = new Uint8Array(pictures.length * each);
    for (const [index, picture] of pictures.entries()) {
      values.set(fitPicture(await this.#decode(picture), size), index * each);
    }
    const shape = [pictures.length, ...input.shape];
    return { where, x: { values, shape }, y: { values: pictures.map(({ label }) => label), shape: [pictures.length] } };
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
    const found = await result<StoredSource[]>(this.#store(SOURCES, "readonly").getAll());
    return found.sort((a, b) => a.addedAt - b.addedAt);
  }

  #store(name: string, mode: IDBTransactionMode): IDBObjectStore {
    return this.#database.transaction(name, mode).objectStore(name);
  }
}

/** Deletes the store called `name` itself, once every page and worker has closed it. */
export async function destroyDataStore(name: string): Promise<void> {
  await result(indexedDB.deleteDatabase(databaseName(name)));
}

function databaseName(name: string): string {
  return `${name}-data`;
}

function newId(): string {
  return `picked-${crypto.randomUUID()}`;
}

function ofPicture(picture: LabelledPicture): NewPart {
  return { part: { type: "picture", picture }, bytes: picture.bytes.byteLength, labels: [picture.label] };
}

function ofWindows(where: string, windows: readonly LabelledWindow[]): LocalData[] {
  const [first] = windows;
  if (first === undefined) return [];
  const odd = windows.find(({ shape }) => shapeText(shape) !== shapeText(first.shape));
  if (odd !== undefined) {
    throw new DataError(
      `${where}: windows of ${shapeText(first.shape)} and of ${shapeText(odd.shape)}; delete the recordings and record anew`,
    );
  }
  const values = new Float32Array(windows.length * first.values.length);
  windows.forEach((window, index) => {
    values.set(window.values, index * first.values.length);
  });
  const y = { values: windows.map(({ label }) => label), shape: [windows.length] };
  return [{ where, x: { values, shape: [windows.length, ...first.shape] }, y }];
}

function pictureSize(where: string, { layout, shape }: InputSpec): PictureSize {
  const [channels, height, width] = shape;
  if (layout !== "chw" || (channels !== 1 && channels !== 3) || height === undefined || width === undefined) {
    throw new DataError(
      `${where}: pictures need a chw input with 1 or 3 channels, the artifact takes ${shapeText(shape)}; remove them`,
    );
  }
  return { channels, height, width };
}

function misfit(sources: readonly StoredSource[]): string {
  const [first, ...others] = sources.map(({ name, y }) => ({ where: name, y }));
  if (first === undefined) return "no examples are on this device; pick files, take pictures or record motion";
  try {
    for (const other of others) checkLabels(first, other);
    return "";
  } catch (error) {
    return (error as DataError).message;
  }
}

function bytesOfLabels(values: LocalData["y"]["values"]): number {
  if (!Array.isArray(values)) return (values as Values).byteLength;
  return (values as unknown[]).reduce<number>((sum, value) => sum + (typeof value === "string" ? value.length : 8), 0);
}

/** The class of every example; empty where labels are no classes. */
function classesOf({ y }: LocalData): string[] {
  const names: string[] = [];
  for (const value of y.values) {
    if (typeof value === "number" && !Number.isInteger(value)) return [];
    names.push(String(value));
  }
  return new Set(names).size > MOST_LABELS ? [] : names;
}
