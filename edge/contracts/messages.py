"""Bodies of the message kinds, and who sends them. ``report`` carries a :class:`~edge.contracts.report.TrainReport`.

==========  ====  =========================================================================
kind        from  meaning
==========  ====  =========================================================================
hello       both  I am here (after every connect): profile, runtimes, what I am doing; empty from co: who is here?
heartbeat   dev   still here: state and progress
bye         dev   going away; also the last will
profile     dev   a new profile of the device
order       co    a :class:`~edge.contracts.plan.WorkOrder`; repeated until answered
accept      dev   the order is taken (or already running, or already done)
refuse      dev   the order is not taken, with the reason
get         dev   send me these bytes of a blob
block       co    bytes of a blob
offer       dev   an update is ready: digest and size
grant       co    send from this offset, at most ``window`` blocks ahead of it
put         dev   bytes of an update
report      dev   the assignment is done; sent when the update is complete at the coordinator
ack         co    the report is in the ledger (or rejected for good): forget the assignment
keys        dev   two public keys for a masked order; repeated until the roster comes
roster      co    who masks together, with their keys
shares      dev   sealed shares of this device's two secrets; repeated until the mail comes
mail        co    the shares sealed for this device
checked     dev   those shares are in order; repeated until it may proceed
complaint   dev   shares in that mail cannot be used; repeated until acknowledged
dispute     co    somebody complains of this device's shares
opening     dev   what opens the shares complained of, and no others
proceed     co    nobody complains any more: train, and mask
reveal      co    whose updates are in the sum and whose are not; repeated until answered
revealed    dev   shares that take the masks off the sum
exclude     co    who gave shares of other secrets than it signed; repeated until answered
excluded    dev   the seeds of the masks shared with those
renew       dev   this device's certificate ends soon: a request for another, repeated hourly
renewed     co    that certificate
signers     co    which keys sign orders from now on, said after a hello where they were ever changed
error       both  something the other side sent could not be used
==========  ====  =========================================================================
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from edge.contracts.codec import build_readers
from edge.contracts.identity import Renew, Renewed, Signers
from edge.contracts.masking import (
    Checked,
    Complaint,
    Dispute,
    Exclude,
    Excluded,
    Keys,
    Mail,
    Opening,
    Proceed,
    Reveal,
    Revealed,
    Roster,
    Shares,
)
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from profiles.bounds import AFew, Count, Examples, Name, Size, Text
from profiles.device import DeviceProfile

AgentState = Literal["idle", "fetching", "waiting", "training", "uploading", "stopping"]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Sent after every connect.

    Attributes:
        runtimes: runtime name -> version, of those this device can start.
        num_examples: local examples; 0 when the data could not be read (``data_error`` says why).
        assignment_id: the one in progress, or empty.
        block_bytes, window: the largest block and the number of blocks in flight the device accepts.
        abilities: what it can do that not every device can: ``masking``.
        tags: groups that its owner says it belongs to; not there: none.
    """

    device: Name
    agent_version: Name
    profile: DeviceProfile
    runtimes: Annotated[dict[Name, Name], AFew]
    num_examples: Examples
    data_error: Text = ""
    state: AgentState = "idle"
    assignment_id: Name = ""
    block_bytes: Size = 262_144
    window: Size = 4
    abilities: Annotated[tuple[Name, ...], AFew] = ()
    tags: Annotated[tuple[Name, ...], AFew] | msgspec.UnsetType = msgspec.UNSET

    @property
    def tagged(self) -> tuple[str, ...]:
        """Its tags; a hello without any is written without the field."""
        return () if self.tags is msgspec.UNSET else self.tags


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Still here.

    Attributes:
        reason: why a ``waiting`` device waits, in words with values; of others what their disk does not take.
        waiting_for: ``memory``, ``storage``, ``temperature``, ``battery``, ``charging`` or ``time``; of a browser also
            ``hidden`` (its page) or ``network`` (a metered link); empty when it does not wait.
    """

    state: AgentState
    assignment_id: Name = ""
    step: Count = 0
    total_steps: Count = 0
    loss: float | None = None
    reason: Text = ""
    waiting_for: Name = ""


class Bye(msgspec.Struct, frozen=True):
    """Going away; as last will the reason is ``connection lost``."""

    reason: str


class Accept(msgspec.Struct, frozen=True):
    """The order is taken."""

    assignment_id: str


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """The order is not taken: ``code`` is an error's code, ``reason`` its text; bytes when memory is the reason.

    Attributes:
        needed_bytes: what both processes were expected to reach.
        budget_bytes: what they may reach.
        peak_bytes: what they had reached when memory ran out.
    """

    assignment_id: str
    code: str
    reason: str
    needed_bytes: Size = 0
    budget_bytes: Size = 0
    peak_bytes: Size = 0


class Get(msgspec.Struct, frozen=True):
    """Ask for ``length`` bytes of the encoded blob from ``offset``."""

    digest: Name
    encoding: Name
    offset: Count
    length: Count


class Block(msgspec.Struct, frozen=True):
    """Bytes of the encoded blob; ``total`` is its whole encoded size."""

    digest: str
    offset: int
    total: int
    data: bytes


class Offer(msgspec.Struct, frozen=True):
    """An update is ready for ``assignment_id``."""

    assignment_id: str
    update: BlobRef


class Grant(msgspec.Struct, frozen=True):
    """Send from ``offset`` on; everything before it has arrived. ``offset == encoded_size`` means complete."""

    assignment_id: Name
    digest: Name
    offset: Count
    block_bytes: int
    window: int


class Put(msgspec.Struct, frozen=True):
    """Bytes of an offered update."""

    assignment_id: Name
    digest: Name
    offset: Count
    data: bytes


class Ack(msgspec.Struct, frozen=True):
    """``accepted``: the report is in the ledger. Otherwise it never will be, for ``reason``. Either way: forget it."""

    assignment_id: str
    accepted: bool
    code: str = ""
    reason: str = ""


class Error(msgspec.Struct, frozen=True):
    """Something could not be used: ``about`` is an assignment id, digest or message id."""

    code: str
    message: str
    about: str = ""


BODIES: dict[str, type] = {
    "hello": Hello,
    "heartbeat": Heartbeat,
    "bye": Bye,
    "profile": DeviceProfile,
    "order": WorkOrder,
    "accept": Accept,
    "refuse": Refuse,
    "get": Get,
    "block": Block,
    "offer": Offer,
    "grant": Grant,
    "put": Put,
    "report": TrainReport,
    "ack": Ack,
    "keys": Keys,
    "roster": Roster,
    "shares": Shares,
    "mail": Mail,
    "checked": Checked,
    "complaint": Complaint,
    "dispute": Dispute,
    "opening": Opening,
    "proceed": Proceed,
    "reveal": Reveal,
    "revealed": Revealed,
    "exclude": Exclude,
    "excluded": Excluded,
    "renew": Renew,
    "renewed": Renewed,
    "signers": Signers,
    "error": Error,
}
"""Every kind of version 1 and its body."""

build_readers(*BODIES.values())
