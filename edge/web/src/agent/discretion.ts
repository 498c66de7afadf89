/** What the coordinator is told of data that cannot be used: that it is so. The page shows the rest to its owner. */

import { DataError } from "../contracts/errors";
import type { Refuse } from "../contracts/messages";

export const NO_EXAMPLES = "no examples here; add some on the device's page";

const UNUSABLE = "the examples on this device cannot be used as they are; its page tells the owner why";
const BAD_DATA = new DataError("").code;

/** A reason without the names of files, folders and classes that the owner's one may hold. */
export function toldDataError(reason: string): string {
  return reason === "" || reason === NO_EXAMPLES ? reason : UNUSABLE;
}

/** `refusal` as it is sent. */
export function toldRefusal(refusal: Refuse): Refuse {
  return refusal.code === BAD_DATA ? { ...refusal, reason: toldDataError(refusal.reason) } : refusal;
}
