"""The options of ``apportion agent`` for the owner's home. Imports no connection: the help is shown at once."""

from __future__ import annotations

import argparse

PASSWORD_VARIABLE = "APPORTION_HOME_PASSWORD"
OPTION = "--home-assistant"


def add_home_arguments(parser: argparse.ArgumentParser) -> None:
    """The broker of the owner's home, as a group of its own."""
    add = parser.add_argument_group(
        "Home Assistant",
        f"the device and a switch for it at home; the password is read from {PASSWORD_VARIABLE}",
    ).add_argument
    add(OPTION, metavar="URL", help="the owner's own broker, mqtt://[user@]host[:port] or mqtts://...")
    add(f"{OPTION}-ca", metavar="FILE", help="authority that signed that broker's certificate")
