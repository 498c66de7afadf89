"""Which shard a device is of, and how many shards each coordinator is to serve. No I/O here.

A shard is a fixed part of a federation's devices. Who serves it is the holder of the lease ``shard-<number>``;
which processes there are is told by the leases ``member-<owner>``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from coordinator.ledger.coordination import Lease

_SHARD, _MEMBER = "shard-", "member-"


def shard_of(device: str, shards: int) -> int:
    """The number of the shard that ``device`` is of, 0 to ``shards`` - 1.

    The first eight bytes of the SHA-256 of its id, big-endian, modulo ``shards``: the same on every machine and in
    every release, for holders that disagreed would both answer a device, or none.
    """
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:8], "big") % shards


def shard_lease(number: int) -> str:
    """The name of a shard's lease."""
    return f"{_SHARD}{number}"


def member_lease(owner: str) -> str:
    """The name of the lease with which a process shows that it is alive."""
    return f"{_MEMBER}{owner}"


def free_shards(leases: Iterable[Lease], shards: int) -> list[int]:
    """Numbers of the shards that nobody holds, in order."""
    held = {lease.name for lease in leases if lease.left_s > 0}
    return [number for number in range(shards) if shard_lease(number) not in held]


def fair_share(owner: str, leases: Iterable[Lease], shards: int) -> int:
    """How many shards ``owner`` is to hold; the shares of all live processes add up to ``shards``.

    As many each, and one more for the first of them where that does not come out even: first those that hold most, so
    that nothing moves that need not. All processes that see the same leases compute the same.
    """
    live = [lease for lease in leases if lease.left_s > 0]
    held = {lease.owner: 0 for lease in live if lease.name.startswith(_MEMBER)} | {owner: 0}
    ours = {shard_lease(number) for number in range(shards)}
    for lease in live:
        if lease.name in ours and lease.owner in held:
            held[lease.owner] += 1
    order = sorted(held, key=lambda name: (-held[name], name))
    each, more = divmod(shards, len(order))
    return each + (order.index(owner) < more)
