// Renders public/icon.svg to the PNG icons that installed pages need. Run once after a change of the drawing:
//   CHROMIUM=/usr/bin/chromium node scripts/renderIcons.mjs
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = join(dirname(fileURLToPath(import.meta.url)), "..", "public");
const drawing = readFileSync(join(folder, "icon.svg"), "utf8");
const work = mkdtempSync(join(tmpdir(), "icons-"));
// A maskable icon may be cut down to a circle of 80 % of its width: its drawing stays well within.
const icons = [
  ["icon-192.png", 192, 0.82],
  ["icon-512.png", 512, 0.82],
  ["icon-maskable-512.png", 512, 0.6],
];
for (const [name, size, share] of icons) {
  const page = join(work, "icon.html");
  const margin = Math.round((size * (1 - share)) / 2);
  writeFileSync(
    page,
    `<style>body{margin:0;background:#f4f6f3}svg{position:absolute;inset:${margin}px;width:${size - 2 * margin}px}</style>${drawing}`,
  );
  execFileSync(process.env.CHROMIUM ?? "chromium", [
    "--headless",
    "--no-sandbox",
    "--hide-scrollbars",
    `--window-size=${size},${size}`,
    `--screenshot=${join(folder, name)}`,
    `file://${page}`,
  ]);
}
rmSync(work, { recursive: true });
