"""What the system allows a load test: open files for each process, and ports from which devices connect."""

from __future__ import annotations

import resource
from pathlib import Path

from edge.contracts.errors import ConfigError

_SPARE_FILES = 256
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def raise_open_files() -> int:
    """The open files this process, and what it starts, may have: the soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_room(devices: int, processes: int, open_files: int) -> None:
    """Check that a broker on this machine can hold ``devices`` connections and ``processes`` can make them.

    Args:
        open_files: as :func:`raise_open_files` gave it; negative for no limit.

    Raises:
        ConfigError: naming the limit, what it is, what is needed, and how it is raised.
    """
    problems = []
    needed = max(devices, -(-devices // processes)) + _SPARE_FILES
    if 0 <= open_files < needed:
        problems.append(
            f"--devices: {devices} connections need {needed} open files in the broker, the hard limit is {open_files}; "
            f"raise it (ulimit -Hn {needed}, or LimitNOFILE= of a service), or take {open_files - _SPARE_FILES} devices"
        )
    if (ports := free_ports()) is not None and ports < devices + _SPARE_FILES:
        problems.append(
            f"--devices: {devices} connections from one address need as many ports, {_PORT_RANGE} allows {ports}; "
            'widen it (sysctl -w net.ipv4.ip_local_port_range="1024 65535")'
        )
    if problems:
        raise ConfigError(problems)


def free_ports() -> int | None:
    """How many ports outgoing connections may have from one address to one place; None where that is not known."""
    try:
        low, high = (int(part) for part in _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return None
    return high - low + 1
