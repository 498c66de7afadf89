/** What the owner of a device decides about its agent. */

import type { Envelope } from "../contracts/envelope";
import { MessageRejected } from "../contracts/errors";
import { WorkOrder } from "../contracts/plan";
import { checkName } from "../contracts/topics";

/** Whose orders are followed; `Trust` of the identity is one. */
export interface OrderTrust {
  checkOrder(order: WorkOrder, body: Uint8Array, signature: Uint8Array): Promise<void>;
  checkManifest(data: Uint8Array, signature: Uint8Array): Promise<void>;
}

/** Fixed for the life of an agent. */
export interface AgentSettings {
  readonly federation: string;
  readonly device: string;
  /** What page and trainer may reach together; 0: no limit. */
  readonly budgetBytes: number;
  /** Most threads an order gets; 0: as ordered. */
  readonly threads: number;
  /** Names of blob and data store, for the trainer. */
  readonly store: string;
  readonly data: string;
  /** The artifact's self-test runs before its first training. */
  readonly selfTest: boolean;
  readonly heartbeatS: number;
  /** Keys one of which must have signed orders and manifests; null follows unsigned ones too. */
  readonly trust: OrderTrust | null;
  /** Blobs may come over HTTPS where an order says so. */
  readonly bulk: boolean;
}

export const DEFAULT_SETTINGS = {
  budgetBytes: 0,
  threads: 0,
  store: "apportion",
  data: "apportion",
  selfTest: true,
  heartbeatS: 5,
  trust: null,
  bulk: true,
} as const satisfies Partial<AgentSettings>;

/** The runtimes whose artifacts are trained here: both are the same plain ONNX step graphs. */
export const RUNTIMES: readonly string[] = ["onnxruntime_web", "onnxruntime"];

/** The order in `envelope`, for this device and signed as wanted. @throws MessageRejected; also SignatureRejected. */
export async function readOrder(settings: AgentSettings, envelope: Envelope): Promise<WorkOrder> {
  const order = envelope.read(WorkOrder);
  if (order.federation !== settings.federation || order.device !== settings.device) {
    throw new MessageRejected(
      `order is for ${order.federation}/${order.device}, this is ${settings.federation}/${settings.device}`,
    );
  }
  checkName(order.assignment_id, "assignment id");
  await settings.trust?.checkOrder(order, envelope.body, envelope.signature);
  return order;
}
