/** Build steps after bundling: what the service worker stores, and compressed siblings that the server can send. */

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import type { Plugin } from "vite";
import { LICENCES, writeLicences } from "./licences";

const COMPRESSED = /\.(js|mjs|css|html|svg|json|webmanifest|wasm)$/;
/** onnxruntime-web's other builds, WebGPU and WebNN, 20 MB and more each: nothing here imports them. */
const UNUSED_RUNTIME = /ort-wasm-simd-threaded\.(jsep|asyncify|jspi)/;
const NAMED_BY_CONTENT = /^assets\//;
/** Quality 11 takes a minute for 14 MB of wasm and saves 8 % over 9. */
const BROTLI_LARGE = 9;
const LARGE_BYTES = 1_000_000;

export function offlineBuild(): Plugin {
  let folder = "dist";
  return {
    name: "offline-build",
    apply: "build",
    configResolved(config) {
      folder = config.build.outDir;
    },
    generateBundle(_, bundle) {
      for (const name of Object.keys(bundle)) if (UNUSED_RUNTIME.test(name)) delete bundle[name];
    },
    closeBundle() {
      const worker = join(folder, "serviceWorker.js");
      writeLicences(folder);
      const paths = filesIn(folder).filter((path) => path !== "serviceWorker.js" && path !== LICENCES);
      const files = paths.map((path) => [path === "index.html" ? "./" : path, NAMED_BY_CONTENT.test(path)]);
      const hash = createHash("sha256");
      for (const path of paths) hash.update(path).update(readFileSync(join(folder, path)));
      const build = JSON.stringify({ version: hash.digest("hex").slice(0, 16), files });
      writeFileSync(worker, `const BUILD=${build};${readFileSync(worker, "utf8")}`);
      for (const path of [...paths, "serviceWorker.js"]) if (COMPRESSED.test(path)) compress(join(folder, path));
    },
  };
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((path) => statSync(join(folder, path)).isFile())
    .map((path) => relative(".", path).split(sep).join("/"))
    .sort();
}

function compress(path: string): void {
  const plain = readFileSync(path);
  const quality = plain.length > LARGE_BYTES ? BROTLI_LARGE : constants.BROTLI_MAX_QUALITY;
  const params = { [constants.BROTLI_PARAM_QUALITY]: quality, [constants.BROTLI_PARAM_SIZE_HINT]: plain.length };
  for (const [suffix, packed] of [
    ["br", brotliCompressSync(plain, { params })],
    ["gz", gzipSync(plain, { level: 9 })],
  ] as const) {
    if (packed.length < plain.length) writeFileSync(`${path}.${suffix}`, packed);
  }
}
