/**
 * The error tree: whose fault it is and what to do next. Classes and codes are those of the Python side.
 *
 * Every message says what was expected, what arrived, where, and the next step; `code` goes into refusals and errors.
 */

export class ApportionError extends Error {
  /** Stable kebab-case name, as `refuse` and `error` messages carry it. */
  readonly code: string = "error";
  /** The next step for the reader; empty when the message already says it. */
  readonly hint: string;

  constructor(message: string, { hint = "", cause }: { hint?: string; cause?: unknown } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.hint = hint;
  }
}

/** The configuration, a link or the place the page runs in; `problems` holds one line each. */
export class ConfigError extends ApportionError {
  override readonly code: string = "bad-config";
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options: { hint?: string; cause?: unknown } = {}) {
    const head = problems.length === 1 ? "1 problem" : `${problems.length} problems`;
    super(`${head} in the configuration:\n${problems.map((problem) => `  ${problem}`).join("\n")}`, options);
    this.problems = problems;
  }
}

/** A plan that does not fit what it is applied to. */
export class PlanError extends ApportionError {
  override readonly code: string = "plan-error";
}

/** A step whose losses differ from what the manifest promises. */
export class ParityError extends ApportionError {
  override readonly code: string = "parity-failed";
}

/** Bytes that do not have the digest they were asked for by; fetch them again. */
export class ArtifactCorrupt extends ApportionError {
  override readonly code: string = "artifact-corrupt";
}

/** Local data that cannot be read as the manifest describes it. */
export class DataError extends ApportionError {
  override readonly code: string = "bad-data";
}

/** Work a device may not or cannot take; expected, the round skips it. */
export class DeviceRefused extends ApportionError {
  override readonly code: string = "device-refused";
}

/** An update whose tensors are not the ones, the shapes or the finite values that were ordered. */
export class UpdateRejected extends ApportionError {
  override readonly code: string = "update-rejected";
}

/** A message that is too large, truncated, or not of the shape its kind promises. */
export class MessageRejected extends ApportionError {
  override readonly code: string = "bad-message";
}

/** A message or manifest of a version this side does not speak. */
export class UnsupportedVersion extends MessageRejected {
  override readonly code: string = "unsupported-version";
}

/** An order in an encoding that this agent cannot undo. */
export class UnsupportedEncoding extends ApportionError {
  override readonly code: string = "unsupported-encoding";
}

/** An order for an assignment that this device has settled. */
export class ReplayedOrder extends ApportionError {
  override readonly code: string = "replayed-order";
}

/** An order or a manifest that no trusted key has signed. */
export class SignatureRejected extends MessageRejected {
  override readonly code: string = "bad-signature";
  /** Of the order, as the order says; empty for a manifest. */
  readonly assignmentId: string;

  constructor(message: string, { assignmentId = "", hint = "" }: { assignmentId?: string; hint?: string } = {}) {
    super(message, { hint });
    this.assignmentId = assignmentId;
  }
}

/** Nothing was enrolled; `code` says why: the service's own, or `service-unreachable`, `bad-reply`, `wrong-device`. */
export class EnrolmentFailed extends ApportionError {
  override readonly code: string;

  constructor(code: string, message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, options);
    this.code = code;
  }
}

/** A store that cannot take another blob within its quota. */
export class StoreFull extends ApportionError {
  override readonly code: string = "store-full";
}

/** No connection to the broker. */
export class BrokerUnreachable extends ApportionError {
  override readonly code: string = "broker-unreachable";
}

/** The broker or a peer refused who we are. */
export class AccessDenied extends ApportionError {
  override readonly code: string = "access-denied";
}

/** Work that was not done within its time. */
export class DeadlineExpired extends ApportionError {
  override readonly code: string = "deadline-expired";
}
