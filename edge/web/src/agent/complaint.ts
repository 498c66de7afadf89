/** The answer to a message that was rejected. */

import { type MessageRejected, SignatureRejected } from "../contracts/errors";
import type { Assignment } from "./assignment";
import type { Send } from "./outbox";

/**
 * An order that is not trusted is refused, so that its round need not wait for this device; but never one under the
 * assignment in hand, `work`: whoever forges it could end the real one.
 */
export function complain(send: Send, error: MessageRejected, work: Assignment | null, about: string): void {
  const named = error instanceof SignatureRejected ? error.assignmentId : "";
  if (named !== "" && named !== work?.order.assignment_id) {
    const bytes = { needed_bytes: 0, budget_bytes: 0, peak_bytes: 0 };
    send("refuse", { assignment_id: named, code: error.code, reason: error.message, ...bytes });
  } else {
    send("error", { code: error.code, message: error.message, about });
  }
}
