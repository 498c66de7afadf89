"""What an order says of a model that it has a device install for its owner."""

from __future__ import annotations

import msgspec

from profiles.bounds import Name

ABILITY = "releases-1"
"""What a device that installs models says in its hello."""


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """A release.

    Attributes:
        name: for people: what it is a model of.
        uses_own: what the device has trained for itself in this run fits the model, and takes its tensors' place where
            the device predicts.
    """

    name: Name
    uses_own: bool = False
