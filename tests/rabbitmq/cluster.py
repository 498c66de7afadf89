"""A RabbitMQ cluster on this machine's loopback address, each node a process with the folder generated for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

from coordinator.brokers.cluster_files import ClusterFolders, write_cluster_folders
from coordinator.brokers.nodes import Node
from coordinator.brokers.settings import free_port
from tests.rabbitmq.userland import ROOT, inside

START_TIMEOUT_S = 90.0
BIN = "/usr/lib/rabbitmq/bin"


class Cluster:
    """Nodes ``rabbit1@localhost`` and so on; a context manager that ends them, by pid."""

    def __init__(self, root: Path, folder: Path, identity: Path, size: int) -> None:
        self.nodes = [
            replace(Node("localhost", f"rabbit{i}"), port=free_port(), distribution_port=free_port())
            for i in range(1, size + 1)
        ]
        self.folder = folder / "cluster"
        self._root, self._identity = root, identity
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self.processes: dict[Node, subprocess.Popen[bytes]] = {}
        self.url = self.write().url
        for node in self.nodes:
            data = folder / "data" / node.name
            data.mkdir(parents=True)
            cookie = data / ".erlang.cookie"
            cookie.write_bytes((self.folder / str(node) / "erlang.cookie").read_bytes())
            cookie.chmod(0o400)
        self._folder = folder

    def write(self) -> ClusterFolders:
        """The nodes' folders, from the identity as it is now."""
        return write_cluster_folders(
            self._identity,
            self.folder,
            self.nodes,
            at=PurePosixPath("/etc/rabbitmq"),
            bind="127.0.0.1",
            cluster_bind="127.0.0.1",
            devices=200,
        )

    def __enter__(self) -> Cluster:
        try:
            self._epmd = self._run(self.nodes[0], ["/usr/bin/epmd", "-port", str(self._epmd_port)], "epmd")
            for node in self.nodes:
                self.start(node)
            for node in self.nodes:
                self.wait_for(node)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in [*self.processes.values(), *([self._epmd] if self._epmd else [])]:
            process.kill()
            process.wait()

    def start(self, node: Node) -> None:
        self.processes[node] = self._run(node, [f"{BIN}/rabbitmq-server"], node.name)

    def kill(self, node: Node) -> None:
        """SIGKILL, and not a moment for a goodbye."""
        os.kill(self.processes[node].pid, signal.SIGKILL)
        self.processes[node].wait()

    def wait_for(self, node: Node) -> None:
        """Until ``node`` takes connections."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", node.port), 1.0).close()
                return
            ended = self.processes[node].poll()
            assert ended is None, f"{node} ended with {ended}:\n{self.log(node)[-3000:]}"
            assert time.monotonic() < give_up_at, f"{node} does not listen:\n{self.log(node)[-3000:]}"
            time.sleep(0.1)

    def wait_for_members(self, count: int) -> None:
        """Until as many nodes run in one cluster."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            found = self.command("rabbitmqctl", "--quiet", "cluster_status", "--formatter", "json")
            running = json.loads(found)["running_nodes"]
            if len(running) == count:
                return
            assert time.monotonic() < give_up_at, f"{running} of {count} nodes run"
            time.sleep(0.5)

    def log(self, node: Node) -> str:
        return (self._folder / f"{node.name}.log").read_text(errors="replace")

    def command(self, *words: str, node: Node | None = None, timeout_s: float = 60.0) -> str:
        """What a command such as ``rabbitmqctl list_users`` prints, run where ``node`` is."""
        at = node or self.nodes[0]
        done = subprocess.run(
            self._inside(at, [words[0] if "/" in words[0] else f"{BIN}/{words[0]}", *words[1:]]),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def connections(self) -> dict[str, str]:
        """User -> node of every MQTT connection."""
        pairs = '[[element(11, C), " ", atom_to_list(element(3, C)), ";"] || C <- rabbit_connection_tracking:list()]'
        text = self.command("rabbitmqctl", "eval", f"binary_to_list(iolist_to_binary({pairs})).")
        return dict(pair.split(" ") for pair in text.strip().strip('"').split(";") if pair)

    def _inside(self, node: Node, words: list[str]) -> list[str]:
        folders = {"/etc/rabbitmq": self.folder / str(node), "/var/lib/rabbitmq": self._data(node)}
        return [*inside(self._root, folders), *words]

    def _data(self, node: Node) -> Path:
        return self._folder / "data" / node.name

    def _run(self, node: Node, words: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "coordinator.brokers.parent_death",
                    str(os.getpid()),
                    *self._inside(node, words),
                ],
                env={**self._environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/var/lib/rabbitmq",
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_LOGS": "-",
            # The script then becomes the server, so that its process is the one to kill.
            "RUNNING_UNDER_SYSTEMD": "true",
            # Two cores are shared by three nodes, the coordinator and the devices.
            "RABBITMQ_SERVER_START_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
