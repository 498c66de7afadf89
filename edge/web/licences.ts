/** The licences of what the page bundles, as one text beside it: the packages of which code is in a chunk, and theirs.
 *
 * Some packages are published as one bundle with their own dependencies inside, so all of those are named as well. */

import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

export const LICENCES = "licences.txt";
const LICENCE_FILE = /^(licen[cs]e|copying|notice|thirdpartynotices)(\.(md|txt))?$/i;
/** Packages that are published without their licence's text, and whose they are. */
const HOLDERS: Record<string, string> = {
  "guid-typescript": "Copyright its author, nicolas",
  "onnxruntime-common": "Copyright (c) Microsoft Corporation",
  "onnxruntime-web": "Copyright (c) Microsoft Corporation",
};

/** Package folders, gathered over the page's bundles and the worker's. */
const bundled = new Set<string>();

/** Notes the packages that a bundle holds code of; the page's bundle and the worker's both need it. */
export function noteLicences(): Plugin {
  return {
    name: "note-licences",
    apply: "build",
    renderChunk(_, chunk) {
      for (const [id, { renderedLength }] of Object.entries(chunk.modules)) if (renderedLength > 0) note(id);
      return null;
    },
    generateBundle(_, bundle) {
      for (const file of Object.values(bundle)) {
        if (file.type === "asset") for (const name of file.originalFileNames) note(name);
      }
    },
  };
}

/** The text, in `folder`.
 *
 * @throws Error when a package says nothing of its licence: it may not be shipped before somebody has looked.
 */
export function writeLicences(folder: string): void {
  const places = new Set<string>();
  for (const place of bundled) addWithDependencies(place, places);
  const texts = [...places].sort().map((place) => licenceOf(place));
  const head = "The page bundles these packages; their authors hold their rights. Everything else is Apache-2.0.\n";
  writeFileSync(join(folder, LICENCES), [head, ...texts].join(`\n${"-".repeat(80)}\n\n`));
}

function note(id: string): void {
  const place = /^.*\/node_modules\/(@[^/]+\/)?[^/]+/.exec(id.replace(/^\0/, "").replace(/[?#].*$/, ""))?.[0];
  const folder = place ?? /^node_modules\/(@[^/]+\/)?[^/]+/.exec(id)?.[0];
  if (folder !== undefined && existsSync(join(folder, "package.json")))
    bundled.add(folder.replace(/^.*?(?=node_modules\/)/, ""));
}

function addWithDependencies(place: string, places: Set<string>): void {
  if (places.has(place)) return;
  places.add(place);
  const { dependencies = {} } = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
  for (const name of Object.keys(dependencies)) {
    if (name.startsWith("@types/")) continue;
    const own = join(place, "node_modules", name);
    addWithDependencies(existsSync(own) ? own : join("node_modules", name), places);
  }
}

function licenceOf(place: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
  if (typeof license !== "string") throw new Error(`${place}/package.json names no licence`);
  const files = readdirSync(place).filter((file) => LICENCE_FILE.test(file));
  const texts = files.map((file) => readFileSync(join(place, file), "utf8").trim());
  if (texts.length === 0) texts.push(withoutText(name, license));
  return `${name} ${version} (${license})\n\n${texts.join("\n\n")}\n`;
}

function withoutText(name: string, license: string): string {
  const holder = HOLDERS[name];
  if (holder === undefined) throw new Error(`${name} (${license}) has no licence file: name its holder in licences.ts`);
  return license === "MIT" ? `${holder}\n\n${readFileSync("licences/MIT.txt", "utf8").trim()}` : holder;
}
