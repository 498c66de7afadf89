"""The supervisor's side of its trainer child: start, talk, end, and tell a crash from an end that was wanted."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.manifest import ArtifactManifest
from edge.supervisor.native_trainer import NativeTrainer
from edge.supervisor.trainer_messages import Ready, Reply, Request, Train, read_reply
from edge.system.pipe_frames import write_bytes, write_frame

log = logging.getLogger("apportion.trainer")

EXIT_WAIT_S = 2.0

# Measured on this project's trainers: one malloc arena and early trimming give freed step tensors back to the system,
# BLAS threads and huge pages only add resident memory to a process whose arithmetic happens in the runtime.
CHILD_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "NUMPY_MADVISE_HUGEPAGE": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class TrainerSaid:
    """A message of the trainer."""

    reply: Reply


@dataclass(frozen=True)
class TrainerEnded:
    """The trainer ended without being told to.

    Attributes:
        reason: names the signal or exit status.
        signal: that ended it; 0 where it ended by itself.
        peak_bytes: its largest resident set; 0 where the system did not say.
    """

    reason: str
    signal: int = 0
    peak_bytes: int = 0


TrainerEvent = TrainerSaid | TrainerEnded


class TrainerLink:
    """At most one child at a time. Events of a child that was ended on purpose are dropped.

    Args:
        python: interpreter that runs the trainer; runtimes may live in environments of their own.
        deliver: called from a reader thread.
    """

    def __init__(self, *, python: str, runtime: str, deliver: Callable[[TrainerEvent], None]) -> None:
        self._python = python
        self._runtime = runtime
        self._deliver = deliver
        self._child: subprocess.Popen[bytes] | None = None
        self._paused: subprocess.Popen[bytes] | None = None
        self._heard_at = 0.0
        self._programs: set[str] = set()
        self.artifact = ""
        """Digest of the artifact the child has loaded, empty before its first order."""
        self.native = NativeTrainer(runtime, python)
        """The trainer without Python, once it is found or a child has told of it."""
        self._is_native = False

    @property
    def is_running(self) -> bool:
        """Whether there is a child (that has not been seen to end)."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> subprocess.Popen[bytes]:
        """The child, started unless there is one. It may end at any moment, and is then forgotten by its reader.

        Raises:
            ConfigError: the interpreter cannot be started.
        """
        running = self._child
        if running is not None:
            return running
        try:
            return self._started([self._python, "-m", "edge.commands.trainer_start", self._runtime], is_native=False)
        except OSError as error:
            raise ConfigError([f"--trainer-python: {self._python} cannot be started ({error})"]) from error

    def _started(self, command: list[str], *, is_native: bool) -> subprocess.Popen[bytes]:
        self.artifact = ""
        self._programs.clear()
        self._heard_at = time.monotonic()
        child = subprocess.Popen(
            [*command, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
        )
        self._child, self._is_native = child, is_native
        threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return child

    def send(self, request: Request) -> None:
        """Send ``request``, starting a child first when there is none that takes it."""
        if self._is_native:
            self.end()
        child = self.start()
        assert child.stdin is not None
        with _gone_is_told():
            write_frame(child.stdin, request)

    def train(self, request: Train, manifest: ArtifactManifest | None = None) -> None:
        """Send an order; a child that has another artifact loaded, or another program of it alone, is ended first.

        Args:
            manifest: of the order's artifact; without it the Python trainer carries the order out.
        """
        programs = {turn.program for turn in request.order.schedule.turns}
        is_other = self.artifact not in ("", request.order.artifact.digest)
        if is_other or (self._programs and self._programs.isdisjoint(programs)):
            # Statistics beside a training step need more memory than was planned for either: 9 MB for ResNet-8.
            self.end()
        flat = self.native.flat(request, manifest)
        if flat is None or not self._sent_flat(flat):
            self.send(request)
        self._programs |= programs
        self.artifact = request.order.artifact.digest

    def _sent_flat(self, order: bytes) -> bool:
        """Whether the native trainer, started where it does not run, has the order."""
        if not self._is_native:
            self.end()
        child = self._child
        try:
            child = child or self._started([self.native.path], is_native=True)
        except OSError as error:
            log.warning("%s cannot be started (%s); the Python trainer carries orders out", self.native.path, error)
            self.native.path = ""
            return False
        assert child.stdin is not None
        with _gone_is_told():
            write_bytes(child.stdin, order)
        return True

    @property
    def is_native(self) -> bool:
        """Whether the child, or the last one, is the trainer without Python."""
        return self._is_native

    @property
    def is_paused(self) -> bool:
        """Whether there is a child that stands still in the middle of its work."""
        return self._paused is not None and self._paused is self._child

    def pause(self) -> None:
        """Let the child stand still where it is, with all its memory, until :meth:`resume`; it may also be killed."""
        child = self._child
        if child is not None:
            self._paused = child
            child.send_signal(signal.SIGSTOP)

    def resume(self) -> bool:
        """Whether there was a paused child, which now goes on."""
        is_paused, child, self._paused = self.is_paused, self._paused, None
        if is_paused and child is not None:
            self._heard_at = time.monotonic()
            child.send_signal(signal.SIGCONT)
        return is_paused

    def end_if_unused(self, now: float, idle_s: float) -> None:
        """End a child that has said nothing for ``idle_s``; the caller knows that it has nothing to do."""
        if self._child is not None and now - self._heard_at > idle_s:
            self.end()

    def end(self) -> None:
        """End the child and forget it; what it was doing is lost."""
        child, self._child = self._child, None
        self.artifact = ""
        if child is None:
            return
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        try:
            child.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def kill(self) -> None:
        """End the child at once."""
        child = self._child
        if child is not None:
            child.kill()
        self.end()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout:
            try:
                while (reply := read_reply(child.stdout)) is not None:
                    if child is self._child:
                        self._heard_at = time.monotonic()
                        if isinstance(reply, Ready):
                            self.native.told(reply)
                        self._deliver(TrainerSaid(reply))
            except (MessageRejected, ValueError) as error:
                log.error("trainer %d: %s", child.pid, error)
                child.kill()
        status, peak_bytes = _ended(child)
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        if child is self._child:
            self._child = None
            self._deliver(TrainerEnded(exit_reason(status), max(0, -status), peak_bytes))


@contextlib.contextmanager
def _gone_is_told() -> Iterator[None]:
    """A child that has closed its pipe, or whose reader saw its end: the reader reports it."""
    try:
        yield
    except (BrokenPipeError, ValueError):
        log.info("the trainer is gone; its end is reported by the reader")


def _ended(child: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Exit status of ``child``, awaited, and its peak resident set; 0 where another thread was told of its end."""
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except ChildProcessError:
        return child.wait(), 0
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss * 1024


def exit_reason(status: int) -> str:
    """``SIGKILL (killed, perhaps out of memory)`` or ``exit status 3``."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"{name} (killed, perhaps out of memory)" if name == "SIGKILL" else name


def child_environment() -> dict[str, str]:
    """Our environment for the child, with memory settings, and this package importable from a source checkout."""
    environment = {**CHILD_ENVIRONMENT, **os.environ}
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        # An installed package must be installed in the trainer's environment too: adding this one's site-packages
        # would mix two environments.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH", "")]))
    return environment
