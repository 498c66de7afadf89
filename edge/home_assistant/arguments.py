"""The owner's home, from the arguments of ``apportion agent``; without them nothing of it is imported."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from edge.contracts.errors import ConfigError
from edge.home_assistant.home import Home
from edge.home_assistant.options import OPTION, PASSWORD_VARIABLE
from edge.transport.broker_address import BrokerAddress, parse_broker
from edge.transport.shown_password import tell_if_shown
from profiles.probe import probe


def read_home(chosen: argparse.Namespace, problems: list[str]) -> BrokerAddress | None:
    """The broker of the owner's home, None without one; adds a line to ``problems`` for everything that is wrong."""
    if chosen.home_assistant is None:
        if chosen.home_assistant_ca is not None:
            problems.append(f"{OPTION}-ca: belongs to {OPTION}; give both")
        return None
    tell_if_shown(chosen.home_assistant, OPTION, variable=PASSWORD_VARIABLE)
    try:
        address = parse_broker(
            chosen.home_assistant, ca=chosen.home_assistant_ca, option=OPTION, password_variable=PASSWORD_VARIABLE
        )
    except ConfigError as error:
        problems += error.problems
        return None
    if address.password is not None and address.username is None:
        problems.append(f"{OPTION}: {PASSWORD_VARIABLE} is set and the URL names no user; mqtt://USER@{address.host}")
    return address


def home_of(address: BrokerAddress | None, federation: str, device: str, budget_bytes: int, folder: Path) -> Home:
    """The home at ``address``; one that asks nothing where there is none."""
    if address is None:
        return Home()
    from edge.home_assistant.link import HomeAssistantLink

    profile = partial(probe, device, budget_bytes=budget_bytes, storage=folder)
    return HomeAssistantLink(address, federation=federation, folder=folder, profile=profile)
