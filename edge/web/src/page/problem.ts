/** Any error as a problem that can be shown. */

import { ApportionError, ConfigError } from "../contracts/errors";
import type { Problem } from "./model";

export function problemOf(error: unknown): Problem {
  if (error instanceof ConfigError) {
    // The others follow from the first: what is no link has no token either.
    const message = (error.problems[0] ?? error.message).replace(/^LINK: /, "it ");
    return { code: error.code, message, hint: error.hint };
  }
  if (error instanceof ApportionError) return { code: error.code, message: error.message, hint: error.hint };
  return { code: "error", message: error instanceof Error ? error.message : String(error), hint: "" };
}
