/** Examples in a NumPy archive with arrays `x` and `y`, as `numpy.savez` and `savez_compressed` write it. */

import { DataError } from "../contracts/errors";
import { type LocalData, listText, shapeText } from "./examples";
import { readNpy } from "./npy";
import { ZipArchive } from "./zip";

/** @throws DataError naming `where` for a file that is damaged, too large, pickled, or without `x` and `y`. */
export function readNpz(bytes: Uint8Array, where: string): LocalData {
  const archive = new ZipArchive(bytes, where);
  const missing = ["x", "y"].filter((key) => !archive.names.includes(`${key}.npy`));
  if (missing.length > 0) {
    const known = archive.names.map((name) => name.replace(/\.npy$/, "")).sort();
    throw new DataError(`${where}: no array ${listText(missing)} among ${listText(known)}; save it with keys x and y`);
  }
  const x = readNpy(archive.read("x.npy"), `${where}: x`);
  const y = readNpy(archive.read("y.npy"), `${where}: y`);
  if (x.shape.length === 0 || y.shape.length === 0 || x.shape[0] !== y.shape[0]) {
    throw new DataError(
      `${where}: x has shape ${shapeText(x.shape)}, y ${shapeText(y.shape)}; the first dimension must be the examples`,
    );
  }
  if (Array.isArray(x.values)) throw new DataError(`${where}: x is text, numbers expected; save it as numbers`);
  return { where, x: { values: x.values as LocalData["x"]["values"], shape: x.shape }, y };
}
