/** Picture files into pixels, by the browser. In page and worker alike. */

import { DataError, DeviceRefused } from "../contracts/errors";
import type { Pixels } from "./pixels";

/** A picture as it was picked or taken: the file's own bytes. */
export interface PictureFile {
  readonly bytes: Uint8Array;
  /** As `image/png`; empty where nobody said. */
  readonly type: string;
  /** For messages. */
  readonly name: string;
}

export type DecodePicture = (file: PictureFile) => Promise<Pixels>;

/** Decoded it takes four bytes a pixel: more than this is no example for a phone. */
export const MOST_PIXELS = 50_000_000;

/**
 * The picture upright, as its file says, in its own colour values.
 *
 * @throws DataError naming the file when it is no picture, or a too large one; DeviceRefused in a browser without
 * OffscreenCanvas.
 */
export async function decodePicture(file: PictureFile): Promise<Pixels> {
  if (typeof createImageBitmap !== "function" || typeof OffscreenCanvas !== "function") {
    throw new DeviceRefused("this browser has no OffscreenCanvas, which reads pictures; use a newer one");
  }
  let bitmap: ImageBitmap;
  try {
    const blob = new Blob([file.bytes as Uint8Array<ArrayBuffer>], { type: file.type });
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch (cause) {
    throw new DataError(`${file.name}: is not a readable image (${(cause as Error).message}); replace the file`, {
      cause,
    });
  }
  try {
    const { width, height } = bitmap;
    if (width * height > MOST_PIXELS) {
      throw new DataError(
        `${file.name}: has ${width} x ${height} pixels, at most ${MOST_PIXELS} are read; make it smaller`,
      );
    }
    const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    if (context === null) throw new DataError(`${file.name}: no memory to decode it; close other pages`);
    context.drawImage(bitmap, 0, 0);
    return { width, height, rgba: context.getImageData(0, 0, width, height).data };
  } finally {
    bitmap.close();
  }
}
