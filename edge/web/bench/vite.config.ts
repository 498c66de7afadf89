import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

// The page that benchmarks/web_step.py drives; no part of the agent's own build.
export default defineConfig({
  root: fileURLToPath(new URL(".", import.meta.url)),
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 0 },
  worker: { format: "es" },
});
