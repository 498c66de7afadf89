"""An sshd with this machine's own programs, whose user has a home folder that a test made.

Its programs are this machine's and see this machine's files; the home folder, the list of users, and what could reach a
service manager or a crontab of this machine are the namespace's own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.coordinator.fleet.private_namespace import PrivateProcess, Unavailable, require_namespaces
from tests.coordinator.fleet.ssh_server import (
    USER,
    SshServer,
    accounts,
    configuration,
    free_port,
    make_keys,
)
from tests.coordinator.fleet.user_manager import (
    BOOTED,
    RUNTIME_FOLDER,
    find_systemd,
    make_control_group,
    remove_control_group,
    start_line,
)

HIDDEN = ("/run/user", "/run/systemd", "/run/dbus", "/var/spool/cron")
"""Folders by which a session could reach a service manager or the crontabs of this machine."""


def find_sshd() -> str:
    """The server's program.

    Raises:
        Unavailable: it is not here.
    """
    path = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if path is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        raise Unavailable("no sshd here (Debian: openssh-server)")
    return path


@contextlib.contextmanager
def native_sshd(
    folder: Path,
    *,
    home_mb: int = 0,
    programs: Mapping[str, str] | None = None,
    python: bool = True,
    systemd: bool = False,
) -> Iterator[SshServer]:
    """A running server; its files are in ``folder``, a new one.

    Args:
        home_mb: the home folder is a file system of so many MB; 0: no such limit.
        programs: shell scripts, by name, that sessions find before any other program.
        python: sessions find the Python that this process runs on.
        systemd: one runs the user's services, as on a board.

    Raises:
        Unavailable: no sshd here, or namespaces are not allowed.
    """
    sshd = find_sshd()
    require_namespaces()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    home, first = folder / "home", folder / "programs"
    home.mkdir()
    first.mkdir()
    for name, script in (programs or {}).items():
        (first / name).write_text(f"#!/bin/sh\n{script}\n")
        (first / name).chmod(0o755)
    keys = make_keys(folder)
    port = free_port()
    path = [str(first), *([f"{sys.base_prefix}/bin"] if python else []), "/usr/local/bin", "/usr/bin", "/bin"]
    mounts = ["mount -t proc proc /proc"]
    for name, text in accounts(keys, home).items():
        (folder / name).write_text(text)
        mounts.append(f"mount --bind '{folder}/{name}' /etc/{name}")
    mounts += [f"[ ! -d {hidden} ] || mount -t tmpfs none {hidden}" for hidden in HIDDEN]
    manager = find_systemd() if systemd else ""
    if manager:
        mounts += ["mount -t tmpfs -o mode=755 none /run", f"mkdir -p {BOOTED} && mkdir -p -m 700 {RUNTIME_FOLDER}"]
    if home_mb:
        mounts.append(f"mount -t tmpfs -o size={home_mb}m,mode=755 none '{home}'")
    config = folder / "sshd_config"
    config.write_text(
        configuration(
            port=port,
            host_key=keys.host,
            authorized=Path(f"{keys.client}.pub"),
            environment={"PATH": ":".join(path), "LANG": "C.UTF-8"},
        )
    )
    command = [sshd, "-D", "-e", "-f", str(config)]
    group = None
    if manager:
        command = ["sh", "-c", f"{start_line(manager, home, USER)}; exec {shlex.join(command)}"]
        group = make_control_group(f"apportion-sshd-{port}")
    process = PrivateProcess("\n".join(mounts), command, folder / "sshd.log", group=group)
    try:
        server = SshServer("127.0.0.1", port, USER, keys, home, process)
        server.wait_until_listening()
        if home_mb:
            server = SshServer("127.0.0.1", port, USER, keys, process.seen_from_outside(home), process)
        yield server
    finally:
        process.stop()
        if group is not None:
            remove_control_group(group)
