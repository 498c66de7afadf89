import { defineConfig } from "vite";
import { noteLicences } from "./licences";
import { offlineBuild } from "./offlineBuild";

// One origin, relative addresses: the page works wherever the coordinator serves it, at `/` and at `/join`.
export default defineConfig({
  base: "./",
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    sourcemap: false,
    modulePreload: { polyfill: false },
    rollupOptions: {
      input: { index: "index.html", serviceWorker: "src/serviceWorker.ts" },
      output: {
        // A service worker's scope is its own folder: it has to lie at the top, under a name that stays.
        entryFileNames: ({ name }) => (name === "serviceWorker" ? "serviceWorker.js" : "assets/[name]-[hash].js"),
      },
    },
  },
  worker: { format: "es", plugins: () => [noteLicences()] },
  plugins: [noteLicences(), offlineBuild()],
});
