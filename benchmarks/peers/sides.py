"""How each side starts, what its log says, and what a user does after a loss of power."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from benchmarks.peers.processes import CLIENT, SERVER

APPS = Path(__file__).parent / "apps"
DEVICES = 8


class Side(Protocol):
    """One system's federation in ``folder``; its processes are children of this one."""

    folder: Path
    rounds: int
    has_short_connections: ClassVar[bool]
    """Whether a connection lives for one message, too short for its owner to be looked up; its other end listens."""

    def start(self) -> None:
        """From nothing to a run that is under way."""

    def role(self, command: str) -> str:
        """Part of a process with this command line; '' where it does not say."""

    def mark(self, device: int) -> str:
        """What the command lines of this device's processes have."""

    def rounds_over(self) -> int:
        """Rounds that are complete."""

    def is_over(self) -> bool:
        """Whether the run has ended and its model is there."""

    def model_file(self) -> Path:
        """The final model."""

    def start_server_again(self) -> None:
        """What a user types after the server's loss of power."""

    def start_device_again(self, device: int) -> None:
        """What a user types after a device's."""


def spawn(command: list[str], log: Path, *, cwd: Path, **variables: str) -> None:
    """Start a process whose output is appended to ``log``; its end is collected elsewhere."""
    with log.open("ab") as out:
        subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )


@dataclass
class Apportion:
    """``apportion run``: coordinator, broker, and an agent with a trainer for each device."""

    folder: Path
    rounds: int
    has_short_connections: ClassVar[bool] = False

    def start(self) -> None:
        """One command."""
        self._write()
        self._apportion("run", str(self.folder / "run.toml"), "--run-dir", str(self._run))

    def simulate(self) -> None:
        """One command; two processes."""
        self._write()
        words = ["--run-dir", str(self._run), "--workers", "2"]
        self._apportion("simulate", str(self.folder / "run.toml"), *words)

    def _write(self) -> None:
        text = (APPS / "apportion" / "run.toml").read_text()
        text = text.replace("rounds = 10", f"rounds = {self.rounds}").replace("every = 10", f"every = {self.rounds}")
        (self.folder / "run.toml").write_text(text)

    @property
    def _run(self) -> Path:
        return self.folder / "run"

    def _apportion(self, *words: str) -> None:
        command = [str(Path(sys.executable).with_name("apportion")), *words]
        paths = os.pathsep.join([str(APPS / "apportion"), str(Path.cwd())])
        spawn(command, self.folder / "apportion.log", cwd=self.folder, PYTHONPATH=paths)

    def role(self, command: str) -> str:
        """Agents are clients; the broker is below the coordinator."""
        if " edge agent " in command:
            return CLIENT
        return SERVER if re.search("/apportion (run|resume|simulate) ", command) else ""

    def mark(self, device: int) -> str:
        """Its id."""
        return f"device-{device:02d} "

    def rounds_over(self) -> int:
        """By the metrics, a line a round."""
        file = self._run / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return sum(json.loads(line).get("program") == "train" for line in lines if line.endswith("\n"))

    def is_over(self) -> bool:
        """The final model is written last."""
        return self.model_file().exists() and (self._run / "summary.json").exists()

    def model_file(self) -> Path:
        """A safetensors file."""
        return self._run / "checkpoints" / "final.safetensors"

    def own_count(self) -> int:
        """Bytes on the wire between devices and broker, as the run's ledger has them; a simulation has none."""
        if not (self._run / "ledger.sqlite").exists():
            return 0
        with contextlib.closing(sqlite3.connect(f"file:{self._run}/ledger.sqlite?mode=ro", uri=True)) as ledger:
            return int(ledger.execute("SELECT SUM(wire_bytes) FROM traffic").fetchone()[0] or 0)

    def start_server_again(self) -> None:
        """One command."""
        self._apportion("resume", str(self._run))

    def start_device_again(self, device: int) -> None:
        """Local agents are the run's to start; a device elsewhere has a service that does."""


@dataclass
class Flower:
    """A SuperLink, a SuperNode for each device, and ``flwr run``.

    Attributes:
        keeps_state: in a file, in place of memory, which is what a SuperLink does by itself.
    """

    folder: Path
    rounds: int
    python: Path
    keeps_state: bool = False
    has_short_connections: ClassVar[bool] = False

    PORT: ClassVar[int] = 8000

    def start(self) -> None:
        """Ten commands."""
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{self.PORT}"\ninsecure = true\n'
        )
        self.start_superlink()
        wait_for(self.PORT)  # flwr run ends where it finds no server
        for device in range(DEVICES):
            self.start_device_again(device)
        self.submit()

    def _flower(self, name: str, *words: str, log: str) -> None:
        spawn(
            [str(self.python.with_name(name)), *words],
            self.folder / log,
            cwd=self.folder,
            FLWR_HOME=str(self.folder / "flwr"),
            FLWR_TELEMETRY_ENABLED="0",
            FLWR_DISABLE_UPDATE_CHECK="1",
            PATH=f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        )

    def start_superlink(self) -> None:
        """The server."""
        words = ["--insecure", "--disable-runtime-dependency-installation", "--port", str(self.PORT)]
        if self.keeps_state:
            words += ["--database", str(self.folder / "state.db")]
        self._flower("flower-superlink", *words, log="superlink.log")

    def submit(self) -> None:
        """The run."""
        app, final = str(APPS / "flower"), self.model_file()
        self._flower(
            "flwr", "run", app, "local", "--run-config", f'rounds={self.rounds} final="{final}"', log="run.log"
        )

    def role(self, command: str) -> str:
        """Apps are below the process that starts them."""
        if "flower-supernode" in command:
            return CLIENT
        return SERVER if "flower-superlink" in command else ""

    def mark(self, device: int) -> str:
        """Its examples' file."""
        return f"site-{device + 1}.npz"

    def rounds_over(self) -> int:
        """By the server's log, which has a line for each update that came.

        The app's own log is in the server's state, and a look into that file might be in the server's way.
        """
        log = self.folder / "superlink.log"
        return log.read_text().count("Push replies") // DEVICES if log.exists() else 0

    def is_over(self) -> bool:
        """The model is written last."""
        return self.model_file().exists()

    def model_file(self) -> Path:
        """A state dict as torch writes it."""
        return self.folder / "final.pt"

    def start_server_again(self) -> None:
        """The same command."""
        self.start_superlink()

    def start_device_again(self, device: int) -> None:
        """The same command."""
        config = f'data="{self.folder}/shares/site-{device + 1}.npz"'
        words = ["--insecure", "--superlink", f"127.0.0.1:{self.PORT}", "--port", str(9100 + device)]
        self._flower("flower-supernode", *words, "--node-config", config, log=f"supernode-{device}.log")


@dataclass
class Flare:
    """POC mode: a server and a client for each site with their own certificates, and a job."""

    folder: Path
    rounds: int
    python: Path
    has_short_connections: ClassVar[bool] = False

    def start(self) -> None:
        """Four commands."""
        self.command("poc", "prepare", "-n", str(DEVICES))
        self.command("poc", "start", "--timeout", "200")
        job = self.folder / "job"
        words = ["job.py", "--data", str(self.folder / "shares"), "--rounds", str(self.rounds)]
        subprocess.run(
            [str(self.python), *words, "--export", "--export-dir", str(job)],
            cwd=APPS / "nvflare",
            env=self._environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.command("job", "submit", "-j", str(next(job.rglob("meta.json")).parent))

    def simulate(self) -> None:
        """One command; two clients at a time."""
        spawn(
            [str(self.python), "job.py", "--data", str(self.folder / "shares"), "--rounds", str(self.rounds)],
            self.folder / "simulator.log",
            cwd=APPS / "nvflare",
            **self._environment(),
        )

    def command(self, *words: str) -> None:
        """Of the peer's command line."""
        done = subprocess.run(
            [str(self.python.with_name("nvflare")), *words],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=(out := (self.folder / "nvflare.log").open("ab")),
            stderr=subprocess.STDOUT,
            timeout=240,
        )
        out.close()
        if done.returncode:
            print(f"nvflare {' '.join(words)}: status {done.returncode}", file=sys.stderr, flush=True)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.folder),
            "NVFLARE_POC_WORKSPACE": str(self.folder / "poc"),
            "NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(self.folder / "simulated"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def role(self, command: str) -> str:
        """Jobs are processes of their own on both ends."""
        if "app.client." in command:
            return CLIENT
        return SERVER if "app.server." in command or " job.py " in command else ""

    def mark(self, device: int) -> str:
        """Its folder."""
        return f"/site-{device + 1}/"

    def rounds_over(self) -> int:
        """By the server's log: a round is over when the next begins."""
        logs = self._server().rglob("log.txt")
        found = [
            ended_rounds(path.read_text(), r"Round (\d+) started", first=0, is_over=self.is_over()) for path in logs
        ]
        return max(found, default=0)

    def _server(self) -> Path:
        simulated = self.folder / "simulated" / "digits" / "server"
        return next((self.folder / "poc").glob("*/prod_00/server"), simulated)

    def is_over(self) -> bool:
        """By the server's log."""
        return any("Finished FedAvg" in path.read_text() for path in self._server().rglob("log.txt"))

    def model_file(self) -> Path:
        """A state dict as torch writes it."""
        return next(self._server().rglob("FL_global_model.pt"), self.folder / "none.pt")

    def start_server_again(self) -> None:
        """The kit's own script."""
        self._again(self._server())

    def start_device_again(self, device: int) -> None:
        """The kit's own script."""
        self._again(self._server().parent / f"site-{device + 1}")

    def _again(self, kit: Path) -> None:
        with (self.folder / "nvflare.log").open("ab") as log:
            subprocess.Popen(
                ["bash", str(kit / "startup" / "start.sh")],
                cwd=kit,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def wait_for(port: int, limit_s: float = 60.0) -> None:
    """Until somebody listens at ``port`` of this machine."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.1)
    raise SystemExit(f"nobody listens at port {port} after {limit_s:g} s; read the side's log")


def ended_rounds(log: str, pattern: str, *, first: int, is_over: bool) -> int:
    """Rounds that are over, by a log that has a line where one begins.

    Args:
        first: number of the first round.
        is_over: whether the run is, so that the last round that began is too.
    """
    numbers = [int(number) for number in re.findall(pattern, log)]
    begun = max(numbers, default=first - 1) - first + 1
    return begun if is_over else max(0, begun - 1)
