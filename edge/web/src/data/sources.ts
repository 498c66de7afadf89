/** Sources of examples as they are stored: what the owner sees of one, and its parts. */

import { DataError } from "../contracts/errors";
import type { InputSpec } from "../contracts/manifest";
import { type LocalData, shapeText, type Values } from "./examples";
import { checkLabels } from "./joining";
import type { LabelledPicture } from "./pickedFiles";
import type { PictureSize } from "./pixels";

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

export interface StoredSource extends SourceInfo {
  /** What tells early whether sources go together: a label's shape, and one label. */
  readonly y: { readonly values: readonly string[] | readonly number[]; readonly shape: readonly number[] };
}

export type Part =
  | { readonly type: "arrays"; readonly data: LocalData }
  | { readonly type: "picture"; readonly picture: LabelledPicture }
  | { readonly type: "window"; readonly window: LabelledWindow };

/** A part with what its source is to count. */
export interface NewPart {
  readonly part: Part;
  readonly bytes: number;
  readonly labels: readonly string[];
}

const MOST_LABELS = 1000;

export function ofPicture(picture: LabelledPicture): NewPart {
  return { part: { type: "picture", picture }, bytes: picture.bytes.byteLength, labels: [picture.label] };
}

/** The windows as examples, none where there are none. */
export function ofWindows(where: string, windows: readonly LabelledWindow[]): LocalData[] {
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

/** What the artifact wants pictures to be. @throws DataError where it takes no pictures. */
export function pictureSize(where: string, { layout, shape }: InputSpec): PictureSize {
  const [channels, height, width] = shape;
  if (layout !== "chw" || (channels !== 1 && channels !== 3) || height === undefined || width === undefined) {
    throw new DataError(
      `${where}: pictures need a chw input with 1 or 3 channels, the artifact takes ${shapeText(shape)}; remove them`,
    );
  }
  return { channels, height, width };
}

/** Why the sources cannot be used together; empty when they can. */
export function misfit(sources: readonly StoredSource[]): string {
  const [first, ...others] = sources.map(({ name, y }) => ({ where: name, y }));
  if (first === undefined) return "no examples are on this device; pick files, take pictures or record motion";
  try {
    for (const other of others) checkLabels(first, other);
    return "";
  } catch (error) {
    return (error as DataError).message;
  }
}

export function ofArrays(data: LocalData): NewPart {
  const bytes = data.x.values.byteLength + bytesOfLabels(data.y.values);
  return { part: { type: "arrays", data }, bytes, labels: classesOf(data) };
}

export function ofWindow(window: LabelledWindow): NewPart {
  return { part: { type: "window", window }, bytes: window.values.byteLength, labels: [window.label] };
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
