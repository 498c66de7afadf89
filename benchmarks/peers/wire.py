"""Bytes between processes of one network namespace: every packet of its loopback, added up by the pair of ports.

A packet socket sees what any program sends there, so nothing is put in a side's way and no side is configured for it.
A port's process is looked up while it is open. Counted are TCP's payload bytes, each once, without headers.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

IPV4, IPV6, ANY = 0x0800, 0x86DD, 0x0003
ARRIVED = 0
HEADER_BYTES = 128
BUFFER_BYTES = 1 << 28

Pair = tuple[int, int]


def payload(packet: bytes, kind: int) -> tuple[Pair, int] | None:
    """((port it is from, port it is to), bytes of TCP payload) of an IP packet whose start is given; None: no TCP.

    Args:
        packet: the headers at least.
        kind: its Ethernet type.
    """
    if kind == IPV4 and len(packet) >= 40 and packet[9] == socket.IPPROTO_TCP:
        start, whole = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    elif kind == IPV6 and len(packet) >= 60 and packet[6] == socket.IPPROTO_TCP:
        start, whole = 40, 40 + int.from_bytes(packet[4:6], "big")
    else:
        return None
    from_port, to_port = struct.unpack_from("!HH", packet, start)
    return (from_port, to_port), whole - start - (packet[start + 12] >> 4) * 4


def connections(table: str) -> dict[Pair, int]:
    """(own port, the other's port) -> inode, of ``/proc/net/tcp`` or ``tcp6``; a listening socket's other port is 0."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        own, other = (int(fields[i].rpartition(":")[2], 16) for i in (1, 2))
        if inode := int(fields[9]):
            found[own, other] = inode
    return found


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets that a process holds."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            link = os.readlink(entry)
            if link.startswith("socket:["):
                found.add(int(link[8:-1]))
    except OSError:
        pass
    return found


def by_roles(sums: Mapping[Pair, int], roles: Mapping[Pair, str]) -> dict[tuple[str, str], int]:
    """(sender's role, receiver's role) -> bytes; '' where a socket was never seen open.

    Args:
        sums: (from, to) -> bytes.
        roles: (own port, other port) -> role of the process; other port 0 is a listening socket, which stands for all
            its connections.
    """
    found: dict[tuple[str, str], int] = {}
    for (from_port, to_port), count in sums.items():
        sender = roles.get((from_port, to_port)) or roles.get((from_port, 0), "")
        receiver = roles.get((to_port, from_port)) or roles.get((to_port, 0), "")
        found[sender, receiver] = found.get((sender, receiver), 0) + count
    return found


class Wire:
    """Counts while it is open; a context manager. Needs the right to open a packet socket."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ANY))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, BUFFER_BYTES)  # SO_RCVBUFFORCE
        self._socket.bind(("lo", ANY))
        self._socket.settimeout(0.2)
        self._sums: dict[Pair, int] = {}
        self._roles: dict[Pair, str] = {}
        self._is_open = True
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self._thread.join()
        self._socket.close()

    def look(self, roles: Mapping[int, str]) -> None:
        """Remember whose the open sockets are.

        Args:
            roles: process id -> role.
        """
        inodes: dict[int, str] = {}
        for pid, role in roles.items():
            inodes |= dict.fromkeys(socket_inodes(pid), role)
        for name in ("tcp", "tcp6"):
            for pair, inode in connections(Path(f"/proc/net/{name}").read_text()).items():
                if inode in inodes:
                    self._roles[pair] = inodes[inode]

    def sums(self) -> dict[tuple[str, str], int]:
        """(sender's role, receiver's role) -> bytes so far."""
        return by_roles(dict(self._sums), self._roles)

    def dropped(self) -> int:
        """Packets that were not seen, since this was last asked."""
        return struct.unpack("II", self._socket.getsockopt(263, 6, 8))[1]  # SOL_PACKET, PACKET_STATISTICS

    def _count(self) -> None:
        while self._is_open:
            try:
                packet, address = self._socket.recvfrom(HEADER_BYTES)
            except TimeoutError:
                continue
            found = payload(packet, address[1]) if address[2] == ARRIVED else None
            if found is not None:
                self._sums[found[0]] = self._sums.get(found[0], 0) + found[1]


def adopt_orphans() -> None:
    """Become the parent of processes below whose own parent ends, so that none is lost from the count."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def in_own_network(run: Callable[[], None]) -> None:
    """Call ``run`` with a loopback of its own, on which nothing else is sent."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x40000000):  # CLONE_NEWNET
        raise SystemExit(f"a network namespace: {os.strerror(ctypes.get_errno())}; run this as root")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    run()
