"""What a device keeps of its masked assignments: secrets, what was said, and the models it took masks off for."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import MAX_COHORT, Complaint, Exclude, Excluded, Opening, Reveal, Revealed, Roster, Shares
from edge.contracts.plan import assignment_id
from edge.contracts.topics import check_name
from edge.masking.keys import check_public, public_of
from edge.system.atomic_files import publish_file, sync, write_whole

_LIMIT = 4 * MAX_MESSAGE_BYTES
_TOLD = "told"


class MaskingState(msgspec.Struct, frozen=True, kw_only=True):
    """All of one assignment's masking, as it is on disk; secrets are dropped once they have been answered for.

    Attributes:
        own: the shares of this device's secrets that it keeps itself.
        received: the opened shares of others, by sender.
        complaint: said in place of all that would follow.
        ephemeral: by receiver, the private key that its shares were sealed with; until nobody may complain any more.
        opening: what was said of a complaint about this device; it masks nothing in that attempt.
        excluded: what was told of members that were found out in the end; once.
        proceeds: whether updates may be masked.
        order: equal for a repeated order only; another one under the same id begins anew.
        weights: the digest of what is trained from.
    """

    assignment_id: str
    federation: str
    round: int
    attempt: int
    device: str
    sharing_key: bytes
    masking_key: bytes
    self_mask: bytes
    roster: Roster | None = None
    shares: Shares | None = None
    own: bytes = b""
    received: dict[str, bytes] | None = None
    reveal: Reveal | None = None
    revealed: Revealed | None = None
    run: str = ""
    complaint: Complaint | None = None
    order: str = ""
    weights: str = ""
    ephemeral: dict[str, bytes] = {}
    opening: Opening | None = None
    proceeds: bool = False
    excluded: Excluded | None = None

    def id_of(self, device: str) -> str:
        """The assignment of ``device`` in the same attempt."""
        return assignment_id(self.federation, self.round, device, self.attempt, self.run)


class MaskingFiles:
    """One file for each assignment in ``folder``, and one of all models that masks were taken off for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def forget(self) -> None:
        """Delete every assignment's; the models stay."""
        for path in self._folder.glob("*"):
            if path.name != _TOLD:
                path.unlink()

    def told(self) -> dict[str, str]:
        """Digest of weights -> the assignment that masks were taken off for."""
        path = self._folder / _TOLD
        lines = path.read_text(encoding="ascii", errors="replace").splitlines() if path.exists() else []
        return {weights: identity for weights, _, identity in (line.partition(" ") for line in lines)}

    def tell(self, state: MaskingState) -> None:
        """Remember for good that masks are taken off for a model; before the answer that does it."""
        # Written anew as a whole: half a line, of a disk that was full, would take the next one with it.
        told = self.told() | {state.weights: state.assignment_id}
        write_whole(self._folder / _TOLD, "".join(f"{weights} {of}\n" for weights, of in told.items()).encode())

    def load(self, identity: str) -> MaskingState | None:
        """What an assignment's masking has come to; None where nothing can be read of it."""
        try:
            data = self._path(identity).read_bytes()
            return decode_msgpack(data, MaskingState, limit=_LIMIT)
        except (OSError, MessageRejected):
            return None

    def _path(self, identity: str) -> Path:
        """Never that of the models, whatever whoever orders calls an assignment; no id begins with ``_``."""
        name = check_name(identity, what="assignment id")
        return self._folder / (f"_{name}" if name == _TOLD else name)

    def save(self, state: MaskingState) -> None:
        """Put ``state`` in the place of what there was, readable by its owner alone."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(state.assignment_id)
        temporary = path.with_suffix(".tmp")
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encode_msgpack(state))
            sync(file)
        publish_file(temporary, path)


def check_roster(roster: Roster, state: MaskingState) -> None:
    """Check that shares may be given to ``roster``.

    Raises:
        MessageRejected: it is not in order of ids, lacks this device's own keys, has a key of nobody's, or so few are
            needed that two halves of it could be asked for different things.
    """
    devices = [member.device for member in roster.members]
    own = [m for m in roster.members if m.device == state.device]
    if devices != sorted(set(devices)) or len(devices) > MAX_COHORT:
        raise MessageRejected(f"a roster of {len(devices)} devices that are not each named once, in order")
    if len(own) != 1 or (own[0].sharing, own[0].masking) != (
        public_of(state.sharing_key),
        public_of(state.masking_key),
    ):
        raise MessageRejected("a roster without this device's own keys")
    for member in roster.members:
        check_public(member.sharing, where=f"device {member.device[:64]}")
        check_public(member.masking, where=f"device {member.device[:64]}")
    if not max(2, len(devices) // 2 + 1) <= roster.threshold <= len(devices):
        raise MessageRejected(
            f"{roster.threshold} of {len(devices)} devices would undo a mask, more than half and at least 2 expected"
        )


def check_reveal(reveal: Reveal, known: set[str], threshold: int) -> None:
    """Check that every device of ``known`` is in one of the lists of ``reveal``, and enough reported.

    Raises:
        MessageRejected: a device is in both, in none or unknown, or fewer than ``threshold`` reported.
    """
    reported, dropped = set(reveal.reported), set(reveal.dropped)
    if both := reported & dropped:
        raise MessageRejected(f"both secrets of '{min(both)[:64]}' are asked for; one is never told with the other")
    if reported | dropped != known:
        raise MessageRejected(
            f"{len(reported | dropped)} devices are named, masks were shared among {len(known)} others"
        )
    if len(reported) < threshold:
        raise MessageRejected(f"{len(reported)} devices reported, a sum of fewer than {threshold} is not unmasked")


def check_exclude(exclude: Exclude, state: MaskingState) -> int:
    """Check that the masks shared with the devices of ``exclude`` may be told; how many devices the sum is then of.

    Raises:
        MessageRejected: nothing was revealed before, one of them is this device or shares no masks with it, or fewer
            than the threshold are left.
    """
    if state.reveal is None or state.roster is None:
        raise MessageRejected("masks are asked for before the sum is unmasked")
    named, reported = set(exclude.devices), set(state.reveal.reported)
    known = reported | set(state.reveal.dropped)
    if not named or state.device in named or not named <= known:
        raise MessageRejected(f"masks with {len(named)} devices are asked for that are not others of the sum")
    if len(reported - named) < state.roster.threshold:
        raise MessageRejected(
            f"{len(reported - named)} devices would be left in a sum, fewer than {state.roster.threshold}"
        )
    return len(reported - named)
