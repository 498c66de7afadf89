"""Which connections a web server has at a time, so that no address keeps the others out.

While there is room everybody has it. When there is none, a newcomer takes the place of a connection of the address that
has most: of one that has asked nothing yet, or else one that waits for its next request, drawn by lot; and where that
address has more than its share, of any. So whoever reconnects again and again displaces its own, so often a second.
Behind one address (a proxy, a site's router) devices share its places by lot.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import time
from typing import Any

LOOPBACK = ("localhost", "127.0.0.1", "::1")

AT_A_TIME = 64
"""Connections that are sent away before others have their turn."""

OWN_PER_S = 50
"""Places that an address takes from itself: beginning with TLS is what a crowd costs."""

SHARE = 4
"""An address that has more than one in so many of all connections loses busy ones too, to others."""


class Listener(socket.socket):
    """Accepts no more than ``max_count`` connections at a time; they count from before TLS until they are closed.

    Args:
        of_an_address: connections that nobody's arrival takes from an address; 0: one in :data:`SHARE` of all.
    """

    def __init__(self, host: str, port: int, max_count: int, of_an_address: int = 0) -> None:
        is_v6 = ":" in host
        super().__init__(socket.AF_INET6 if is_v6 else socket.AF_INET)
        self._max_count = max_count
        self._share = of_an_address or max(1, max_count // SHARE)
        self._count = 0
        self._own_left, self._own_at = float(OWN_PER_S), time.monotonic()
        self._open: dict[str, dict[int, Counted]] = {}
        here = host if is_v6 and host in LOOPBACK else "127.0.0.1" if host in LOOPBACK else ""
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((here, port))
            self.listen(1024)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            BlockingIOError: none waits, or there is no place for it.
        """
        for _ in range(AT_A_TIME):
            accepted, address = super().accept()
            site = _of_a_site(address[0])
            if self._count < self._max_count or self._make_room(site):
                connection = Counted(self, site, accepted.detach())
                self._open.setdefault(site, {})[connection.number] = connection
                self._count += 1
                return connection, address
            accepted.close()
        raise BlockingIOError("too many connections")

    def asks(self, descriptor: int, address: str, is_busy: bool) -> None:
        """A connection has a request that is being answered, or none any more."""
        connection = self._open.get(_of_a_site(address), {}).get(descriptor)
        if connection is not None:
            connection.is_busy = is_busy
            connection.has_asked = True

    def forget(self, connection: Counted) -> None:
        """It is closed, or about to be."""
        own = self._open.get(connection.address, {})
        if own.get(connection.number) is connection:
            del own[connection.number]
            self._count -= 1
            if not own:
                del self._open[connection.address]

    def _make_room(self, address: str) -> bool:
        """Whether a connection was ended for one of ``address``."""
        own = self._open.get(address, {})
        most = max(self._open.values(), key=len)
        loser = most if len(most) > len(own) + 1 else own
        found = [c for c in loser.values() if not c.has_asked] or [c for c in loser.values() if not c.is_busy]
        if not found and len(most) > self._share > len(own):
            found = list(most.values())
        if not found or (loser is own and not self._may_displace_own()):
            return False
        random.choice(found).end()
        return True

    def _may_displace_own(self) -> bool:
        now = time.monotonic()
        self._own_left = min(float(OWN_PER_S), self._own_left + (now - self._own_at) * OWN_PER_S)
        self._own_at = now
        if self._own_left < 1:
            return False
        self._own_left -= 1
        return True


def _of_a_site(address: str) -> str:
    """The address, of IPv6 its first 64 bits: whoever has one of these has them all."""
    return str(ipaddress.IPv6Address(address).packed[:8]) if ":" in address else address


class Counted(socket.socket):
    """A connection of a :class:`Listener` until it is closed."""

    def __init__(self, among: Listener, address: str, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self.address, self.number = address, descriptor
        self.has_asked = self.is_busy = False
        self._among = among

    def end(self) -> None:
        """Its place is another's now; whoever serves it sees its end."""
        self._among.forget(self)
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._among.forget(self)
        super().close()
