"""What would tell who a file is from: names, addresses and serial numbers of this machine, looked for in its text.

The fields of a shared measurement hold none of them by design; this looks whether a board's or a system's own name does
all the same, as those of home-made images can.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
from collections.abc import Iterator

from profiles.system_files import SystemFiles

_SERIALS = (
    "/proc/device-tree/serial-number",
    "/sys/firmware/devicetree/base/serial-number",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/dmi/id/board_serial",
    "/sys/class/dmi/id/chassis_serial",
    "/sys/class/dmi/id/product_uuid",
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/proc/sys/kernel/random/boot_id",
)
_PLAIN = re.compile(
    "android|arm|arm64|armbian|debian|default|device|dietpi|fedora|guest|home|host|linux|localdomain|localhost|model|"
    "nobody|none|orangepi|phone|pi|raspberry|raspberrypi|raspbian|root|server|system|ubuntu|unknown|user"
)
"""Names that many machines have: nobody is found by them."""

SHORTEST = 4
"""Letters of a name that is looked for: ``pi`` and ``vm`` are in other words."""


def identifying(files: SystemFiles) -> Iterator[tuple[str, str]]:
    """(what it is, the value), of this machine or of the one whose files are read."""
    names = [("host name", files.line("/etc/hostname")), ("host name", files.line("/proc/sys/kernel/hostname"))]
    names += [("user name", user) for user in _users(files)]
    if files.is_this_machine:
        names.append(("host name", os.uname().nodename))
    for what, name in names:
        for part in {name, name.partition(".")[0]}:
            if len(part) >= SHORTEST and not _PLAIN.fullmatch(part.lower()):
                yield what, part
    for path in files.matching("/sys/class/net/*/address"):
        mac = files.line(path)
        if re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", mac) and mac != "00:00:00:00:00:00":
            yield from (("MAC address", form) for form in (mac, mac.replace(":", ""), mac.replace(":", "-")))
    yield from (("IP address", address) for address in _addresses(files))
    serials = [files.line(path).strip("\0 ") for path in _SERIALS]
    serials += [value.strip() for key, value in files.fields("/proc/cpuinfo").items() if key == "Serial"]
    for serial in filter(None, serials):
        bare = serial.lstrip("0")
        if len(bare) >= SHORTEST and not _PLAIN.fullmatch(bare.lower()):
            yield from (("serial number", form) for form in {serial, bare, serial.replace("-", "")})


def found_in(text: str, values: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of ``values`` that are in ``text``, as words of their own, whatever their case."""
    return sorted({(what, value) for what, value in values if _has_word(text, value)})


def _has_word(text: str, value: str) -> bool:
    return re.search(rf"(?<![0-9A-Za-z]){re.escape(value)}(?![0-9A-Za-z])", text, re.IGNORECASE) is not None


def _users(files: SystemFiles) -> set[str]:
    """Of accounts that people have."""
    found = set()
    for line in files.text("/etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) > 4 and fields[2].isdecimal() and 1000 <= int(fields[2]) < 60_000:
            found |= {fields[0], *fields[4].replace(",", " ").split()}
    if files.is_this_machine:
        found |= {os.environ.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER")}
        with contextlib.suppress(KeyError):  # a container's user without an entry
            found.add(pwd.getpwuid(os.getuid()).pw_name)
    return found - {""}


def _addresses(files: SystemFiles) -> set[str]:
    """IPv4 of the routing table, IPv6 of the interfaces; not those that every machine has."""
    texts = re.findall(r"(?:\d{1,3}\.){3}\d{1,3}", files.text("/proc/net/fib_trie"))
    for line in files.text("/proc/net/if_inet6").splitlines():
        digits = line.split(" ")[0]
        if re.fullmatch(r"[0-9a-f]{32}", digits):
            texts.append(":".join(digits[at : at + 4] for at in range(0, 32, 4)))
    found = set()
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if not (address.is_loopback or address.is_unspecified or str(address).startswith("255.")):
            found |= {str(address), address.exploded}
    return found
