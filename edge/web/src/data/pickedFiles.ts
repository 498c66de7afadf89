/** Files and folders that the owner picks or drops, sorted into sources: archives, tables, and pictures by class. */

import { DataError } from "../contracts/errors";
import { readCsv } from "./csv";
import type { LocalData } from "./examples";
import type { PictureFile } from "./imageDecoder";
import { readNpz } from "./npz";

/** A file with its path from the folder that was picked. */
export interface PickedFile {
  readonly path: string;
  readonly type: string;
  arrayBuffer(): Promise<ArrayBuffer>;
}

export interface LabelledPicture extends PictureFile {
  readonly label: string;
}

/** A picture that was picked and is read when it is its turn. */
export interface PickedPicture {
  /** Its path, for messages. */
  readonly name: string;
  readonly label: string;
  read(): Promise<LabelledPicture>;
}

/** What one pick adds: a source for every archive and table, one for all pictures. */
export type PickedSource =
  | { readonly kind: "arrays"; readonly name: string; readonly data: LocalData }
  | { readonly kind: "images"; readonly name: string; readonly pictures: readonly PickedPicture[] };

const PICTURE_SUFFIXES = [".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".avif"];

/** A file larger than this is not read into a phone's memory. */
export const MOST_FILE_BYTES = 512 * 2 ** 20;

/**
 * The sources among `files`, in the order of their paths; hidden files and other kinds are passed over.
 *
 * @throws DataError naming the file that cannot be read, or when none of a known kind is among them.
 */
export async function readPicked(files: readonly PickedFile[]): Promise<PickedSource[]> {
  const visible = files
    .filter((file) => !file.path.split("/").some((part) => part.startsWith(".")))
    .sort((a, b) => (a.path < b.path ? -1 : 1));
  const sources: PickedSource[] = [];
  for (const file of visible.filter((found) => suffixOf(found.path) === ".npz")) {
    sources.push({ kind: "arrays", name: file.path, data: readNpz(await bytesOf(file), file.path) });
  }
  for (const file of visible.filter((found) => suffixOf(found.path) === ".csv")) {
    const text = decodeText(await bytesOf(file), file.path);
    sources.push({ kind: "arrays", name: file.path, data: readCsv(text, file.path) });
  }
  const pictures = picturesByClass(visible.filter((file) => PICTURE_SUFFIXES.includes(suffixOf(file.path))));
  if (pictures.length > 0) {
    sources.push({ kind: "images", name: pictures[0]?.name.split("/")[0] ?? "pictures", pictures });
  }
  if (sources.length === 0) {
    throw new DataError(
      `none of ${files.length} files can be read; pick .npz archives with x and y, a .csv table with a label column, ` +
        "or a folder with one folder of pictures per class",
    );
  }
  return sources;
}

/** Files of an `<input type="file">`, with `webkitdirectory` or without. */
export function filesOfInput(list: Iterable<File>): PickedFile[] {
  return [...list].map((file) => withPath(file, file.webkitRelativePath || file.name));
}

/** Files and folders of a drop, folders with all they hold; call it at once, the items are gone when the event is. */
export async function filesOfDrop(items: Iterable<DataTransferItem>): Promise<PickedFile[]> {
  const entries = [...items].flatMap((item) => item.webkitGetAsEntry() ?? []);
  return (await Promise.all(entries.map(filesWithin))).flat();
}

async function filesWithin(entry: FileSystemEntry): Promise<PickedFile[]> {
  const path = entry.fullPath.replace(/^\//, "");
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    return [withPath(file, path)];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: PickedFile[] = [];
  for (;;) {
    // A reader gives at most 100 entries a time, and none when it is through.
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return found;
    for (const within of some) found.push(...(await filesWithin(within)));
  }
}

function withPath(file: File, path: string): PickedFile {
  return { path, type: file.type, arrayBuffer: () => file.arrayBuffer() };
}

/** Class = the folder a picture lies in; those of one pick lie at one depth, or a class would be anyone's guess. */
function picturesByClass(files: readonly PickedFile[]): PickedPicture[] {
  const depths = new Set(files.map((file) => file.path.split("/").length));
  const deepest = Math.max(...depths, 0);
  const odd = files.find((file) => file.path.split("/").length !== deepest || deepest < 2);
  if (odd !== undefined) {
    throw new DataError(
      `${odd.path}: lies in no folder that says its class; put pictures into one folder per class, all at one depth`,
    );
  }
  return files.map((file) => {
    const label = file.path.split("/").at(-2) as string;
    const read = async () => ({ bytes: await bytesOf(file), type: file.type, name: file.path, label });
    return { name: file.path, label, read };
  });
}

async function bytesOf(file: PickedFile): Promise<Uint8Array> {
  let buffer: ArrayBuffer;
  try {
    buffer = await file.arrayBuffer();
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new DataError(`${file.path}: cannot be read (${reason}); pick it again`, { cause });
  }
  if (buffer.byteLength > MOST_FILE_BYTES) {
    throw new DataError(
      `${file.path}: has ${buffer.byteLength} bytes, at most ${MOST_FILE_BYTES} are read; split it up`,
    );
  }
  return new Uint8Array(buffer);
}

function decodeText(bytes: Uint8Array, path: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new DataError(`${path}: is no UTF-8 text; save it as UTF-8`, { cause });
  }
}

function suffixOf(path: string): string {
  return (/\.[^./]+$/.exec(path)?.[0] ?? "").toLowerCase();
}
