"""The verbs that a device has without a coordinator: where each begins, and what it is for in one plain line."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, cast


class DeviceVerb(NamedTuple):
    """One of them.

    Attributes:
        place: module and function of its arguments that gives the exit status, ``package.module:function``.
        line: what it does, for the list of all verbs.
    """

    place: str
    line: str

    def run(self, arguments: list[str]) -> int:
        """Its exit status."""
        module, _, function = self.place.partition(":")
        return cast("Callable[[list[str]], int]", getattr(import_module(module), function))(arguments)


VERBS: dict[str, DeviceVerb] = {
    "agent": DeviceVerb("edge.commands.agent_start:start_agent", "train on this device's own data for a federation"),
    "relay": DeviceVerb("edge.relay.command_line:relay_command", "stand for the devices of one site"),
    "csr": DeviceVerb("edge.commands.csr:csr_command", "make this device's key and certificate request"),
    "enrol": DeviceVerb("edge.commands.enrol:enrol_command", "trade a claim link for this device's certificate"),
    "predict": DeviceVerb("edge.commands.predict:predict_command", "let a deployed model predict, without torch"),
    "generate": DeviceVerb("edge.commands.generate:generate_command", "let a deployed language model write"),
    "release": DeviceVerb("edge.commands.release:release_command", "show or change the deployed model in use here"),
}
"""In the order of the list. A new one is one file in ``edge/commands`` and one line here."""

ALSO_WITHOUT_COORDINATOR: dict[str, DeviceVerb] = {
    "verify": DeviceVerb("edge.commands.verify:verify_command", "repeat an artifact's self-test"),
    "profile": DeviceVerb("edge.commands.profile:profile_command", "measure this device's memory and speed"),
    "bench": DeviceVerb("edge.commands.bench_device:bench_command", "measure this device and share what was found"),
}
"""Verbs of the coordinator with a form of their own where only the device agent is installed."""
