"""The error tree: whose fault it is and what to do next.

::

    ApportionError
    ├── ConfigError           the user's configuration; every problem at once        exit 2
    ├── ExportRefused         a layer or option no runtime step exists for           exit 2
    ├── PlanError             a plan that cannot be made or does not match (ours)    exit 1
    ├── ParityError           an exported step that disagrees with torch             exit 1
    ├── ArtifactCorrupt       bytes that do not match their digest: fetch again      exit 1
    ├── DataError             local data that cannot be read as described            exit 1
    ├── DeviceRefused         a device that may not or cannot do this work: skip it  exit 1
    ├── PolicyRefused         what the owner of a device does not let it be asked    exit 1
    │   └── PolicyWaits       not now; it may be asked later
    ├── UpdateRejected        an update whose tensors are not what was ordered       exit 1
    ├── MessageRejected       a message that cannot be read                          exit 1
    │   ├── UnsupportedVersion
    │   ├── FigureRejected    a number or text beyond what any device has
    │   └── SignatureRejected an order, manifest or message that no trusted key has signed
    ├── IdentityRefused       a certificate, request or identity that cannot be used exit 2
    ├── StoreFull             the quota or the disk of a store is used up            exit 1
    ├── StoreUnreachable      a store elsewhere that does not answer, or refuses     exit 3
    ├── LedgerError           the ledger and the run directory disagree              exit 1
    │   └── LeaseLost         another coordinator may have taken over: write nothing
    ├── BrokerUnreachable     no connection                                          exit 3
    ├── AccessDenied          a connection refused for who we are                    exit 3
    └── DeadlineExpired       not done in time                                       exit 4

Every message says what was expected, what arrived, where, and the next step. A new code gets its section in
docs/errors.md, which a test holds to this tree.
This file holds no handling: the command line maps ``exit_code`` and ``code``, the agent reports ``code`` and text.
"""

from __future__ import annotations

from collections.abc import Sequence


class ApportionError(Exception):
    """Base of every error this project raises on purpose.

    Attributes:
        code: stable kebab-case name, used in ``--json`` output and in ``refuse``/``error`` messages.
        exit_code: process exit status of the command line.
        hint: the next step for the reader, or an empty string when the message already says it.
    """

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(ApportionError):
    """The run file or the arguments are wrong; ``problems`` holds one line each, starting with its path."""

    code = "bad-config"
    exit_code = 2

    def __init__(self, problems: Sequence[str], *, hint: str = "") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(f"{head} in the configuration:\n" + "\n".join(f"  {p}" for p in self.problems), hint=hint)


class ExportRefused(ApportionError):
    """No training step can be exported for ``layer``; the message names what to use instead.

    Attributes:
        layer: its path; "(the module itself)" for what the module's own forward does.
        kind: the type of the layer, or an empty string where it is not known yet.
    """

    code = "export-refused"
    exit_code = 2

    def __init__(self, layer: str, reason: str, *, instead: str, kind: str = "") -> None:
        self.layer, self.kind, self.reason, self.instead = layer, kind, reason, instead
        named = f"layer '{layer}' ({kind})" if kind else f"layer '{layer}'"
        super().__init__(f"{named}: {reason}; use {instead} instead", hint=f"use {instead}")


class PlanError(ApportionError):
    """A plan that cannot be made, or one that does not fit what it is applied to."""

    code = "plan-error"


class ParityError(ApportionError):
    """An exported step whose losses, gradients or buffers differ from torch float64 beyond the stated tolerance."""

    code = "parity-failed"


class ArtifactCorrupt(ApportionError):
    """Bytes that do not have the digest they were asked for by; fetch them again."""

    code = "artifact-corrupt"


class DataError(ApportionError):
    """Local data that cannot be read as the manifest describes it."""

    code = "bad-data"


class DeviceRefused(ApportionError):
    """Work a device may not or cannot take (memory, conditions, missing data); expected, the round skips it."""

    code = "device-refused"


class PolicyRefused(ApportionError):
    """What a device was asked and its owner's policy forbids; the message begins with the rule and its value."""

    code = "policy"


class PolicyWaits(PolicyRefused):
    """What the owner's policy does not allow now: another hour or day may."""

    code = "policy-wait"


class UpdateRejected(ApportionError):
    """An update whose tensors are not the ones, the shapes or the finite values that were ordered."""

    code = "update-rejected"


class MessageRejected(ApportionError):
    """A message that is too large, truncated, or not of the shape its kind promises."""

    code = "bad-message"


class FigureRejected(MessageRejected):
    """A message in order but for a number or text that is larger or smaller than any device has."""

    code = "bad-figure"


class UnsupportedVersion(MessageRejected):
    """A message or manifest of a version this side does not speak."""

    code = "unsupported-version"


class SignatureRejected(MessageRejected):
    """An order, manifest or browser's message without a signature, or with one that none of the trusted keys has made.

    Attributes:
        assignment_id: of the order, as the order says; empty for anything else.
    """

    code = "bad-signature"

    def __init__(self, message: str, *, assignment_id: str = "") -> None:
        super().__init__(message)
        self.assignment_id = assignment_id


class IdentityRefused(ApportionError):
    """A folder, certificate or certificate request that the authority cannot or must not act on."""

    code = "identity-refused"
    exit_code = 2


class StoreFull(ApportionError):
    """A store that cannot take another blob within its quota or disk."""

    code = "store-full"


class StoreUnreachable(ApportionError):
    """A store that does not answer, lets us not in, or whose disk fails; what it holds is not in doubt."""

    code = "store-unreachable"
    exit_code = 3


class LedgerError(ApportionError):
    """A ledger that cannot be opened, or that disagrees with the blobs beside it."""

    code = "ledger-error"


class LeaseLost(LedgerError):
    """A write by a coordinator whose lease ran out or was taken over; nothing was written."""

    code = "lease-lost"


class BrokerUnreachable(ApportionError):
    """No connection to the broker."""

    code = "broker-unreachable"
    exit_code = 3


class AccessDenied(ApportionError):
    """The broker or a peer refused who we are."""

    code = "access-denied"
    exit_code = 3


class DeadlineExpired(ApportionError):
    """Work that was not done within its time."""

    code = "deadline-expired"
    exit_code = 4
