"""A board that can be logged in to: an aarch64 sshd under the emulator, in namespaces of its own, over a board's files.

Unlike on :class:`tests.arm.boards.EmulatedDevice`, every program of it is an aarch64 one and starts others, because the
emulator is registered with the kernel for these namespaces alone (binfmt_misc, since Linux 6.7).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.arm.boards import Board
from tests.arm.userland import EMULATOR, Userland
from tests.coordinator.fleet.private_namespace import PrivateProcess, Unavailable, require_namespaces
from tests.coordinator.fleet.ssh_server import USER, SshServer, accounts, configuration, free_port, make_keys
from tests.profiles.boards import write_tree

HOME = Path("/home") / USER
INSIDE = Path("/run/host")
"""Where the server's own files are in there."""

REGISTRATION = (
    r":apportion-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{emulator}:OCF"
)
"""What an aarch64 program begins with, and what runs it; F: opened now, so that it need not be in the userland."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@contextlib.contextmanager
def emulated_host(folder: Path, userland: Userland, board: Board) -> Iterator[SshServer]:
    """A running one with an empty home folder; its own files are in ``folder``, a new one.

    Raises:
        Unavailable: no namespaces, or the kernel cannot run aarch64 programs in them.
    """
    require_namespaces()
    folder.mkdir(parents=True)
    home = folder / "home"
    home.mkdir()
    keys, port = make_keys(folder), free_port()
    for name, text in accounts(keys, HOME).items():
        (folder / name).write_text(text)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "QEMU_CPU": board.processor,
    }
    (folder / "sshd_config").write_text(
        configuration(
            port=port,
            host_key=INSIDE / keys.host.name,
            authorized=INSIDE / f"{keys.client.name}.pub",
            environment=environment,
        )
    )
    mounts = _mounts(folder, userland.root, board)
    _require_emulation(mounts, userland.root, folder / "probe.log")
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(INSIDE / "sshd_config")]
    process = PrivateProcess(mounts, command, folder / "sshd.log", root=userland.root)
    try:
        server = SshServer("127.0.0.1", port, USER, keys, home, process)
        server.wait_until_listening()
        yield server
    finally:
        process.stop()


def _mounts(folder: Path, root: Path, board: Board) -> str:
    """Shell lines that make ``root`` the disk of the board: read-only but for its home, ``/tmp`` and ``/run``."""
    tree = write_tree(folder / "board", board.files)
    name = tree / "sys/firmware/devicetree/base/model"
    name.parent.mkdir(parents=True)
    shutil.copy(tree / "proc/device-tree/model", name)  # where /proc/device-tree points on a board
    emulator = shutil.which(EMULATOR)
    lines = [
        "if mount -t binfmt_misc none /proc/sys/fs/binfmt_misc; then",
        f"  echo '{REGISTRATION.format(emulator=emulator)}' > /proc/sys/fs/binfmt_misc/register",
        "fi",
        f"mount --bind '{root}' '{root}'",
        f"mount -t proc proc '{root}/proc'",
        # Both sides' Python packages are the test's; a board has none but what is installed on it.
        *(f"mount -t tmpfs none '{root}/{place}'" for place in ("dev", "run", "tmp", "usr/local")),
        f"chmod 1777 '{root}/tmp'",
        f"mkdir -p '{root}{INSIDE}' '{root}/dev/shm'",
        f"ln -s /proc/self/fd '{root}/dev/fd'",
        *(f"touch '{root}/dev/{device}'; mount --bind /dev/{device} '{root}/dev/{device}'" for device in DEVICES),
        *(f"mount --bind '{tree}/proc/{file}' '{root}/proc/{file}'" for file in ("cpuinfo", "meminfo")),
        f"mount --bind '{tree}/sys' '{root}/sys'",
        *(f"mount --bind '{folder}/{file}' '{root}/etc/{file}'" for file in ("passwd", "group", "shadow")),
        f"mount --bind '{folder}' '{root}{INSIDE}'",
        f"mount --bind '{folder}/home' '{root}{HOME}'",
        f"mount -o remount,bind,ro '{root}'",
        f"export QEMU_CPU={board.processor}",
    ]
    return "\n".join(lines)


def _require_emulation(mounts: str, root: Path, log: Path) -> None:
    process = PrivateProcess(mounts, ["/bin/true"], log, root=root)
    try:
        status = process.wait(60.0)
    finally:
        process.stop()
    if status:
        said = log.read_text().strip().splitlines() or ["no reason given"]
        raise Unavailable(f"no aarch64 program runs in a namespace here (Linux 6.7 and later can): {said[-1]}")
