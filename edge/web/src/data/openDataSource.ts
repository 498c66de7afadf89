/** The data store of a page, as its worker opens it. */

import type { DataSource } from "./dataSource";
import { DataStore } from "./dataStore";

export function openDataSource(name: string): Promise<DataSource> {
  return DataStore.open(name);
}
