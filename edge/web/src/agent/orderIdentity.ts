/** What tells an order from another one under the same assignment id. */

import { encodeMsgpack } from "../contracts/codec";
import { WorkOrder } from "../contracts/plan";
import { sha256Hex } from "../store/digest";

/** SHA-256 of all of `order` but its remaining time and its ticket: equal for a repeated order only. */
export function orderIdentity(order: WorkOrder): Promise<string> {
  return sha256Hex(encodeMsgpack(WorkOrder, { ...order, deadline_s: 0, bulk: "", upload_to: "" }));
}

/**
 * SHA-256 of `order` but its ticket, the seconds left included: equal for a replayed order. A signature covers the
 * seconds, so whoever replays an order cannot change them, while a coordinator that orders again has measured others.
 */
export function orderDigest(order: WorkOrder): Promise<string> {
  return sha256Hex(encodeMsgpack(WorkOrder, { ...order, bulk: "", upload_to: "" }));
}
