"""What the supervisor hands over: an order, and where everything it needs lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edge.contracts.plan import WorkOrder


class FlatRequest(Protocol):
    """The fields of :class:`edge.supervisor.trainer_messages.Train` that a flat order is made from."""

    @property
    def order(self) -> WorkOrder:
        """What is to be done."""

    @property
    def files(self) -> Mapping[str, str]:
        """File name in the manifest -> path of its verified blob."""

    @property
    def weights(self) -> str:
        """Path of the weights."""

    @property
    def constants(self) -> str:
        """Path of what changes rarely; may be empty."""

    @property
    def data(self) -> str:
        """Where the local data is."""

    @property
    def update(self) -> str:
        """Path to write the update to."""

    @property
    def threads(self) -> int:
        """Intra-op threads."""

    @property
    def progress_s(self) -> float:
        """Time between two progress messages."""

    @property
    def self_test(self) -> bool:
        """Whether the artifact's self-test is to be repeated."""

    @property
    def features(self) -> str:
        """Folder of kept features; empty: none are kept."""

    @property
    def features_bytes(self) -> int:
        """What they may take."""

    @property
    def features_key(self) -> str:
        """File of the device's private key, with a secret of which they are encrypted; empty: it has none."""
