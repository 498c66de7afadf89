"""A federation on this machine with a page for phones, run as its operator runs it: by ``apportion`` commands."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.identity.folder import IdentityFolder

ROOT = Path(__file__).parents[2]
START_S = 60.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def apportion(*words: str | Path, timeout_s: float = 60.0) -> dict[str, Any]:
    """The ``--json`` line of an ``apportion`` command that succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "edge", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=_environment(),
        cwd=ROOT,
    )
    assert done.returncode == 0, f"apportion {words[0]}: {done.stdout[-800:]} {done.stderr[-2000:]}"
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


@dataclass
class Site:
    """A run that phones can join.

    Attributes:
        config: the run file, whose ``[broker]`` this class writes.
        run_dir: of the run; its log is ``run.log`` beside it.
    """

    folder: Path
    config: Path
    address: str
    process: subprocess.Popen[bytes] | None = None
    invited: list[str] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """Of the run."""
        return self.folder / "run"

    def link(self, device: str) -> str:
        """A new link for ``device``."""
        words = ("--qr", "--device", device, "--config", self.config, "--no-wait", "--fleet", self.folder / "fleet")
        self.invited.append(device)
        return str(apportion("device", "add", *words)["link"])

    def revoke(self, device: str) -> None:
        """Ends ``device`` as an operator does."""
        apportion("device", "revoke", device, "--fleet", self.folder / "fleet")

    def start(self, *, resume: bool = False) -> None:
        """Starts or resumes the run and waits until its page answers."""
        words = ["resume", str(self.run_dir)] if resume else ["run", str(self.config), "--run-dir", str(self.run_dir)]
        with (self.folder / "run.log").open("ab") as log, (self.folder / "run.json").open("wb") as result:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edge", *words, "--json"],
                stdout=result,
                stderr=log,
                env=_environment(),
                cwd=ROOT,
            )
        # Its certificate is checked as a device does, against the identity's root.
        root = IdentityFolder(self.folder / "identity").ca
        trust = ssl.create_default_context(cafile=root) if self.address.startswith("https:") else None
        address, give_up_at = f"{self.address}/healthz", time.monotonic() + START_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2.0, context=trust):
                return
            assert self.process.poll() is None, self.log()[-3000:]
            time.sleep(0.1)
        raise AssertionError(f"no page within {START_S:.0f} s: {self.log()[-3000:]}")

    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, as a power cut."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def summary(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """What the run says at its end."""
        assert self.process is not None
        self.process.wait(timeout_s)
        assert self.process.returncode == 0, self.log()[-3000:]
        line: dict[str, Any] = json.loads((self.folder / "run.json").read_text().strip().splitlines()[-1])
        return line

    def log(self) -> str:
        """What the run has said so far."""
        path = self.folder / "run.log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def federation_site(
    folder: Path, text: str, *, broker: str = "mosquitto", phones: Sequence[str] = (), origin: str = "http://127.0.0.1"
) -> Iterator[tuple[Site, dict[str, str]]]:
    """A site whose run file is ``text`` with a ``[broker]`` of its own, not started yet, and a link for each phone.

    Its page is on a free port of ``origin``, a name of this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity, address = folder / "identity", f"{origin}:{free_port()}"
    apportion("ca", "init", identity)
    config = folder / "run.toml"
    config.write_text(f'{text}\n[broker]\nurl = "{broker}"\nidentity = "{identity}"\nweb = "{address}"\n')
    site = Site(folder, config, address)
    try:
        yield site, {phone: site.link(phone) for phone in phones}
    finally:
        if site.process is not None and site.process.poll() is None:
            site.process.terminate()
            try:
                site.process.wait(15.0)
            except subprocess.TimeoutExpired:
                site.process.kill()
                site.process.wait()


def _environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
