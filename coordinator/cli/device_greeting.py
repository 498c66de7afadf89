"""The fleet's connection to its broker, which is first given the lists that let it in, where they are kept here."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.fleet.book import FleetSettings
from coordinator.fleet.greeting import Greeter
from coordinator.fleet.revocation import lets_in, tell_broker
from coordinator.identity.names import fleet_name


def open_greeter(settings: FleetSettings) -> Greeter:
    """A greeter, to be entered.

    Raises:
        IdentityRefused: there is no identity, or the broker's folder is none, or another identity's.
    """
    identity = Path(settings.identity)
    greeter = Greeter(settings.broker, identity, settings.federation)
    folder = Path(settings.broker_folder) if settings.broker_folder else None
    if folder is None or lets_in(folder, fleet_name(settings.federation)):
        return greeter
    # The broker's files were written before anybody of this federation had a certificate.
    pid_file = Path(settings.broker_pid_file) if settings.broker_pid_file else None
    news = tell_broker(identity, folder, pid_file=pid_file)
    if news.commands:
        print("the broker does not know this federation yet; no device is heard until it has read:", file=sys.stderr)
        print("\n".join(f"  {command}" for command in news.commands), file=sys.stderr)
    return greeter
