/** Where a device's examples are kept, and how many there are. Page and worker open the same one by name. */

import type { InputSpec } from "../contracts/manifest";
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
  /**
   * All examples, for an artifact that takes `input`: images are kept as they were picked, and only the artifact says
   * at which size and in how many channels they are wanted.
   *
   * @throws DataError when there are none or they do not fit together.
   */
  load(input: InputSpec): Promise<LocalData>;
}
