"""Where a broker is and who we are to it: the address in a URL, the files of TLS, and a cluster's further places."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote, urlsplit

from edge.contracts.errors import ConfigError
from edge.transport.shown_password import PASSWORD_VARIABLE


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Where the broker is and who we are to it; ``ca`` is None for the system's authorities.

    Attributes:
        others: further places of the same broker, a cluster's other nodes: (host, port) each.
    """

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """The URL without credentials, for messages."""
        places = ",".join(shown_place(host, port) for host, port in self.places)
        return f"{'mqtts' if self.tls else 'mqtt'}://{places}"

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Every (host, port) of the broker; any of them will do."""
        return (self.host, self.port), *self.others

    def places_for(self, client_id: str) -> tuple[tuple[str, int], ...]:
        """The same, in the order in which this client tries them: clients spread over them, each always alike."""
        first = int.from_bytes(sha256(client_id.encode()).digest()[:4], "big") % len(self.places)
        return self.places[first:] + self.places[:first]

    def client_id(self, name: str, otherwise: str) -> str:
        """The id of a connection: that of our certificate, which bears ``name``, else ``otherwise``.

        A broker can hold a client to the id in its certificate, in the form of a distinguished name, so that nobody
        ends another's connection by its id. Source: RabbitMQ 4, ``mqtt.ssl_cert_client_id_from``.
        """
        return f"CN={name}" if self.certificate is not None else otherwise


def parse_broker(
    url: str,
    *,
    user: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    option: str = "--broker",
    password_variable: str = PASSWORD_VARIABLE,
) -> BrokerAddress:
    """The address in ``mqtt[s]://[user[:password]@]host[:port][,host[:port]...]``, several for a cluster's nodes.

    A password may also come from the environment.

    Args:
        user: taken when the URL names none and there is a password.
        option: that the URL was given by, for messages.
        password_variable: of the environment, where the URL has no password.

    Raises:
        ConfigError: another scheme, no host, an impossible port, or TLS files that are not there.
    """
    problems = []
    scheme, _, rest = url.partition("://")
    rest = rest.partition("/")[0]
    credentials, at, hosts = rest.rpartition("@")
    is_tls = scheme.lower() == "mqtts"
    places: list[tuple[str, int]] = []
    for place in hosts.split(","):
        try:
            parts = urlsplit(f"{scheme}://{credentials}{at}{place}")
            port = parts.port
        except ValueError as error:
            problems.append(f"{option}: {error}")
            continue
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
            shown = f"{parts.scheme}://{parts.hostname or ''}"
            problems.append(f"{option}: {shown!r} is not mqtt://host[:port] or mqtts://host[:port]")
            continue
        places.append((parts.hostname, port or (8883 if is_tls else 1883)))
    shown = f"{scheme}://{hosts}"
    for flag, path in (("--ca", ca), ("--cert", certificate), ("--key", key)):
        if path is not None and not is_tls:
            problems.append(f"{flag}: only mqtts:// uses it, the broker is {shown}")
        elif path is not None and not os.path.isfile(path):
            problems.append(f"{flag}: no file {path}")
    if (certificate is None) != (key is None):
        problems.append("--cert and --key: give both or neither")
    if problems:
        raise ConfigError(problems)
    password = unquote(parts.password) if parts.password is not None else os.environ.get(password_variable)
    return BrokerAddress(
        host=places[0][0],
        port=places[0][1],
        others=tuple(places[1:]),
        tls=is_tls,
        username=unquote(parts.username) if parts.username else user if password is not None else None,
        password=password,
        ca=ca,
        certificate=certificate,
        key=key,
    )


def shown_place(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"
