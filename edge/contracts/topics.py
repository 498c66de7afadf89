"""Topic names, at most seven slashes (the lowest limit among hosted brokers), and who a topic belongs to.

``apportion/v1/<federation>/up/<device>/<kind>``, ``.../dn/<device>/<kind>``, ``.../all/<kind>``.
A device id is also a certificate's common name and a folder name, so its alphabet is small.
"""

from __future__ import annotations

import re

from edge.contracts.errors import MessageRejected

PREFIX = "apportion/v1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str, *, what: str) -> str:
    """``name`` itself when it can be part of a topic, a folder name and a certificate.

    Raises:
        MessageRejected: other characters, ``..``, or more than 64 of them.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise MessageRejected(
            f"{what} {name[:80]!r} is not usable: 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def up(federation: str, device: str, kind: str) -> str:
    """Topic of a message from ``device`` to the coordinator."""
    return f"{PREFIX}/{federation}/up/{device}/{kind}"


def down(federation: str, device: str, kind: str) -> str:
    """Topic of a message from the coordinator to ``device``."""
    return f"{PREFIX}/{federation}/dn/{device}/{kind}"


def everyone(federation: str, kind: str) -> str:
    """Topic of a message from the coordinator to all devices."""
    return f"{PREFIX}/{federation}/all/{kind}"


def coordinator_filter(federation: str) -> str:
    """What a coordinator subscribes to."""
    return f"{PREFIX}/{federation}/up/#"


def kind_filter(federation: str, kind: str) -> str:
    """What a coordinator subscribes to for messages of one kind, whichever device they are from."""
    return f"{PREFIX}/{federation}/up/+/{kind}"


def coordinator_device_filter(federation: str, device: str) -> str:
    """What a coordinator subscribes to for all messages of one device."""
    return up(federation, device, "+")


def device_filters(federation: str, device: str) -> tuple[str, str]:
    """What a device subscribes to."""
    return f"{PREFIX}/{federation}/dn/{device}/#", f"{PREFIX}/{federation}/all/#"


def parse_up(topic: str) -> tuple[str, str, str]:
    """(federation, device, kind) of an ``up`` topic.

    Raises:
        MessageRejected: not such a topic.
    """
    parts = topic.split("/")
    if len(parts) != 6 or "/".join(parts[:2]) != PREFIX or parts[3] != "up":
        raise MessageRejected(f"topic {topic[:120]!r} is not {PREFIX}/<federation>/up/<device>/<kind>")
    return parts[2], check_name(parts[4], what="device id"), parts[5]


def kind_of(topic: str) -> str:
    """The message kind, the topic's last part."""
    return topic.rsplit("/", 1)[-1]
