"""Who may use which topics at RabbitMQ: users, and regular expressions over routing keys.

The rules are those of Mosquitto's access file. RabbitMQ turns a topic into a routing key: ``/`` becomes ``.``. A
subscription is checked as its filter reads (``#``, and ``*`` for ``+``), so an expression says which filters may be
asked for, and never lets a wildcard stand for a device. Every user has expressions of its own, its name spelt out:
RabbitMQ's ``{username}`` would be filled in as it is.
"""

from __future__ import annotations

from typing import Any

from coordinator.identity.access import Names, federation_of
from edge.contracts.errors import IdentityRefused
from edge.contracts.topics import PREFIX

EXCHANGE, VHOST = "amq.topic", "/"
_PREFIX = PREFIX.replace("/", r"\.")
_ANY, _ANY_FEDERATION = r"[^.]+", r"[^.#]+"


def definitions(names: Names) -> dict[str, Any]:
    """RabbitMQ's definitions: a user without a password for every certificate that stands, and what it may do.

    Raises:
        IdentityRefused: a name with a dot, which would come out of a routing key as ``/``.
    """
    users = [*names.coordinators, *names.devices]
    dotted = [name for name in users if "." in name]
    if dotted:
        raise IdentityRefused(
            f"RabbitMQ delivers '.' in a topic as '/', so {', '.join(repr(name) for name in dotted[:5])}"
            f"{f' and {len(dotted) - 5} more' if len(dotted) > 5 else ''} cannot be there; nothing was written",
            hint="enrol the device under another id and revoke this one, or use Mosquitto",
        )
    return {
        "vhosts": [{"name": VHOST}],
        "users": [
            {
                "name": name,
                # No password is right: users are known by their certificates.
                "password_hash": "",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": {},
            }
            for name in users
        ],
        "permissions": [{"user": name, "vhost": VHOST, **queue_permissions(name)} for name in users],
        "topic_permissions": [
            {"user": name, "vhost": VHOST, "exchange": EXCHANGE, **topic_expressions(name)} for name in users
        ],
        "parameters": [],
        "policies": [],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }


def queue_permissions(name: str) -> dict[str, str]:
    """What a user may do with queues and exchanges: have its own subscription, publish, and subscribe."""
    own = f"mqtt-subscription-CN={name}qos[01]"
    return {"configure": f"^{own}$", "write": rf"^({own}|amq\.topic)$", "read": rf"^({own}|amq\.topic)$"}


def topic_expressions(name: str) -> dict[str, str]:
    """Which routing keys a user may publish with and which filters it may subscribe to; ``@...`` is a coordinator."""
    if name.startswith("@"):
        base = rf"^{_PREFIX}\.{federation_of(name)}"
        return {"write": rf"{base}\.(dn\.{_ANY}|all)\.{_ANY}$", "read": rf"{base}\.up\.(#|{_ANY}\.{_ANY})$"}
    base = rf"^{_PREFIX}\.{_ANY_FEDERATION}"
    return {"write": rf"{base}\.up\.{name}\.{_ANY}$", "read": rf"{base}\.(dn\.{name}|all)\.{_ANY}$"}
