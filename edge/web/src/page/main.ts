/** The page's entry: the views first, everything heavy after them. */

import { storeForOffline, takeNewBuild } from "./offline";

if (!(await takeNewBuild())) {
  await storeForOffline();
}
