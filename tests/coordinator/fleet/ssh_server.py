"""A real sshd on this machine's loopback in namespaces of its own, to which one made-up user can log in."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.coordinator.fleet.private_namespace import UID, PrivateProcess

USER = "pi"
STARTED_S = 60.0
"""An emulated sshd on a busy machine takes seconds; this one hangs."""


@dataclass(frozen=True)
class Keys:
    """Key files of a server and of who may log in.

    Attributes:
        host: the server's private key; its public one lies beside it.
        client: the user's.
        password: the user's, or empty where nothing here can hash one.
        password_hash: as shadow(5) has it.
    """

    host: Path
    client: Path
    password: str
    password_hash: str

    @property
    def fingerprint(self) -> str:
        """Of the server's key, as ssh shows it: ``SHA256:...``."""
        return subprocess.run(
            ["ssh-keygen", "-lf", f"{self.host}.pub"], capture_output=True, text=True, check=True
        ).stdout.split()[1]


def make_key(path: Path) -> Path:
    """A new Ed25519 key pair: ``path`` and ``path.pub``."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)
    return path


def make_keys(folder: Path) -> Keys:
    """Keys and a password of this server alone."""
    password = secrets.token_urlsafe(12) if shutil.which("openssl") else ""
    hashed = "*"
    if password:
        command = ["openssl", "passwd", "-6", "-stdin"]
        done = subprocess.run(command, input=password, capture_output=True, text=True, check=True)
        hashed = done.stdout.strip()
    return Keys(make_key(folder / "host_key"), make_key(folder / "client_key"), password, hashed)


def accounts(keys: Keys, home: Path) -> dict[str, str]:
    """``passwd``, ``group`` and ``shadow`` of a machine with that user alone beside root and sshd's own."""
    return {
        "passwd": f"{USER}:x:{UID}:{UID}::{home}:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
        "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
        "group": f"{USER}:x:{UID}:\nroot:x:0:\nnogroup:x:65534:\n",
        "shadow": f"{USER}:{keys.password_hash}:19000:0:99999:7:::\n",
    }


def configuration(*, port: int, host_key: Path, authorized: Path, environment: dict[str, str]) -> str:
    """sshd_config; sshd runs as the user that logs in, so it changes no user and asks no PAM."""
    variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
    return f"""ListenAddress 127.0.0.1
Port {port}
HostKey {host_key}
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication yes
KbdInteractiveAuthentication no
MaxStartups 100
LoginGraceTime 60
PrintMotd no
Subsystem sftp internal-sftp
SetEnv {variables}
"""


def free_port() -> int:
    """A port of the loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class SshServer:
    """A running one.

    Attributes:
        home: the user's home folder, by a path that this process can read.
        process: the namespaces it runs in.
    """

    host: str
    port: int
    user: str
    keys: Keys
    home: Path
    process: PrivateProcess

    def command(self, *words: str) -> list[str]:
        """OpenSSH's own client, running ``words`` there."""
        known = self.keys.host.with_name("known_hosts")
        kind, key, *_ = self.keys.host.with_name("host_key.pub").read_text().split()
        known.write_text(f"[{self.host}]:{self.port} {kind} {key}\n")
        options = ["-F", "none", "-i", str(self.keys.client), "-p", str(self.port)]
        for option in ("IdentitiesOnly=yes", "BatchMode=yes", f"UserKnownHostsFile={known}", "LogLevel=ERROR"):
            options += ["-o", option]
        return ["ssh", *options, f"{self.user}@{self.host}", *words]

    def run(self, command: str, timeout_s: float = 60.0) -> str:
        """What ``command`` prints there; a failure is raised with its words."""
        done = subprocess.run(self.command(command), capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{command}: exit status {done.returncode}: {done.stderr.strip()}"
        return done.stdout

    def sessions(self) -> list[psutil.Process]:
        """The server's processes that serve a connection."""
        with contextlib.suppress(psutil.NoSuchProcess):
            inside = self.process.first().children(recursive=True)
            return [process for process in inside if process.name().startswith("sshd")]
        return []

    def drop(self) -> int:
        """Ends every open connection as a host without power does; how many there were."""
        open_sessions = self.sessions()
        for session in open_sessions:
            with contextlib.suppress(psutil.NoSuchProcess):
                session.kill()
        return len(open_sessions)

    def listing(self) -> dict[str, str]:
        """What is in the home folder: path -> mode, size and, of a link, where it points."""
        return listing(self.home)

    def wait_until_listening(self) -> None:
        """Until connections are accepted.

        Raises:
            RuntimeError: it ended or does not within :data:`STARTED_S`; the message has its log.
        """
        deadline = time.monotonic() + STARTED_S
        while time.monotonic() < deadline and self.process.is_running:
            if "Server listening on" in self.process.log.read_text():
                return
            time.sleep(0.02)
        raise RuntimeError(f"sshd does not listen on port {self.port}: {self.process.log.read_text()[-2000:]}")


def listing(folder: Path) -> dict[str, str]:
    """Everything below ``folder``: path -> mode, size of a file, target of a link."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        what = f"{status.st_mode:o}"
        if path.is_symlink():
            what += f" -> {path.readlink()}"
        elif path.is_file():
            what += f" {status.st_size}"
        found[str(path.relative_to(folder))] = what
    return found
