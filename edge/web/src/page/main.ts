/** The page's entry: the views first, everything heavy after them. */

import { App } from "./app";
import { storeForOffline } from "./offline";
import { PageStore } from "./pageStore";
import { buildShell } from "./shell";

/** Storing the build for offline use waits for what the owner sees, but not longer. */
const MOST_WAIT_MS = 5_000;

const page = new PageStore();
const app = new App(page);
page.showWith(buildShell(document.body, app));
await Promise.race([app.begin(), new Promise((resolve) => setTimeout(resolve, MOST_WAIT_MS))]);
await storeForOffline();
