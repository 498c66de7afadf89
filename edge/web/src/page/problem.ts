/** Any error as a problem that can be shown. */

import { ApportionError, ConfigError } from "../contracts/errors";
import type { Problem } from "./model";

export function problemOf(error: unknown): Problem {
  if (error instanceof ConfigError) {
    // "LINK: " and the count are for whoever reads a terminal.
    const message = error.problems.map((problem) => problem.replace(/^LINK: /, "")).join("; ");
    return { code: error.code, message, hint: error.hint };
  }
  if (error instanceof ApportionError) return { code: error.code, message: error.message, hint: error.hint };
  return { code: "error", message: error instanceof Error ? error.message : String(error), hint: "" };
}
