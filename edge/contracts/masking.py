"""What devices and the coordinator say to each other so that only the sum of a cohort's updates can be read.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, figure 4, for
parties that keep to the protocol. What each side does is in docs/wire-protocol.md.
"""

from __future__ import annotations

import msgspec

KEY_BYTES = 32
"""Of an X25519 key, public or private, and of a mask's seed."""

MAX_COHORT = 800
"""Devices of one masked round; the shares of more would not fit into a message."""

SAID_BY_DEVICES = ("keys", "shares", "checked", "complaint", "opening", "revealed", "excluded")
"""Message kinds about masks that devices sign, where they have certificates."""

WEIGHT = "#weight"
"""Name of the masked entry that holds an update's weight."""


class Masking(msgspec.Struct, frozen=True, kw_only=True):
    """An order's masking: its update is whole numbers modulo 2^32, under masks that cancel in the cohort's sum.

    Attributes:
        step: what 1 stands for in (weight times the difference to the order's weights).
        largest: the largest absolute value of an entry before masks; above it the device refuses.
        max_weight: the largest weight; an update that stands for more examples weighs that much.
        is_weighted: the weight is the number of examples, otherwise 1.
        clip_norm: largest Euclidean norm of the difference, longer ones are scaled down; 0 = any.
    """

    step: float
    largest: int
    max_weight: int
    is_weighted: bool = True
    clip_norm: float = 0.0


class Keys(msgspec.Struct, frozen=True):
    """A device's two public keys for one assignment: shares are sealed with one, masks agreed on with the other."""

    assignment_id: str
    sharing: bytes
    masking: bytes


class Member(msgspec.Struct, frozen=True):
    """One device of a roster and its public keys."""

    device: str
    sharing: bytes
    masking: bytes


class Roster(msgspec.Struct, frozen=True):
    """Who masks together, by device id, and how many of them undo a mask."""

    assignment_id: str
    threshold: int
    members: tuple[Member, ...]


class Shares(msgspec.Struct, frozen=True):
    """For every other member a share of this device's two secrets, sealed so that only that member reads it.

    Attributes:
        sealed: by member: a public key made for it alone, the sealed shares, the digests of both
            (:mod:`edge.masking.commitments`).
        own: the digests of the shares that this device keeps itself.
        self_mask: the digest of the secret that the self mask is made of.
    """

    assignment_id: str
    sealed: dict[str, bytes]
    own: bytes = b""
    self_mask: bytes = b""


class Mail(msgspec.Struct, frozen=True):
    """The shares sealed for this device, by sender: with these senders, and no others, it shares masks."""

    assignment_id: str
    sealed: dict[str, bytes]


class Checked(msgspec.Struct, frozen=True):
    """All shares of the mail were opened and are what they were said to be: no complaint will follow."""

    assignment_id: str


class Complaint(msgspec.Struct, frozen=True):
    """The shares of ``sender`` cannot be used.

    No update is masked by then, nor will one be in this attempt. ``sharing_key`` is of older releases.
    """

    assignment_id: str
    sender: str
    sharing_key: bytes = b""


class Dispute(msgspec.Struct, frozen=True):
    """``receiver`` complains of the shares that this device gave it."""

    assignment_id: str
    receiver: str


class Opening(msgspec.Struct, frozen=True):
    """The private key made for ``receiver`` alone: it opens what this device gave it, and nothing else.

    No update is masked by then, nor will this device mask one in this attempt.
    """

    assignment_id: str
    receiver: str
    key: bytes


class Proceed(msgspec.Struct, frozen=True):
    """Nobody complains any more: updates may be masked."""

    assignment_id: str


class Reveal(msgspec.Struct, frozen=True):
    """Whose updates are in the sum and whose will never be; asked once for an assignment."""

    assignment_id: str
    reported: tuple[str, ...]
    dropped: tuple[str, ...]


class Revealed(msgspec.Struct, frozen=True):
    """Shares of the self masks of those that reported, and of the masking keys of those that dropped out."""

    assignment_id: str
    self_masks: dict[str, bytes]
    masking_keys: dict[str, bytes]


class Exclude(msgspec.Struct, frozen=True):
    """Devices that gave shares of other secrets than they signed: their masks come off without them. Asked once."""

    assignment_id: str
    devices: tuple[str, ...]


class Excluded(msgspec.Struct, frozen=True):
    """For each of those devices the seed of the mask that this device shares with it."""

    assignment_id: str
    seeds: dict[str, bytes]
