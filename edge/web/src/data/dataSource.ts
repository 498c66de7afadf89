/** Where a device's examples are kept, and how many there are. Page and worker open the same one by name. */

import type { LocalData } from "./examples";

export interface DataSummary {
  readonly numExamples: number;
  /** Class name or number -> examples. */
  readonly labels: Readonly<Record<string, number>>;
  /** Why the data cannot be used; empty when it can. */
  readonly error: string;
}

export interface DataSource {
  summary(): Promise<DataSummary>;
  /** All examples; DataError when there are none or they do not fit together. */
  load(): Promise<LocalData>;
}
