import { defineConfig } from "vite";

// One origin, relative addresses: the page works wherever the coordinator serves it.
export default defineConfig({
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 0, sourcemap: false },
  worker: { format: "es" },
});
