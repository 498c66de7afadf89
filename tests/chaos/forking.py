"""Processes that start at once: forked from one that has imported everything and has no thread, no socket, no session.

A child is a process of its own in every respect: it is killed with SIGKILL like any other, and a new one of the same
kind knows nothing of it. Only its imports are not repeated, which take three seconds for a coordinator.
"""

from __future__ import annotations

import array
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from tests.chaos.children import CHILDREN

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have this process killed when ``parent``, which started it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Forks:
    """Starts children through a process that does nothing else. Make one before there is a thread or a loop."""

    def __init__(self) -> None:
        if threading.active_count() != 1:
            raise RuntimeError(f"{threading.active_count()} threads: a fork takes one of them along; make Forks first")
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._requests.close()
            die_with(parent)
            _serve(theirs)
        theirs.close()

    def start(self, kind: str, values: dict[str, Any], *, control: socket.socket, log: int) -> int:
        """Process id of a new child.

        Args:
            kind: of :data:`tests.chaos.children.CHILDREN`.
            control: the child's end of the line on which it tells of points; closed here.
            log: descriptor that its stdout and stderr go to.
        """
        request = json.dumps({"kind": kind, **values}).encode()
        socket.send_fds(self._requests, [request], [control.fileno(), log])
        control.close()
        return int(json.loads(self._requests.recv(1000)))

    def status(self, pid: int) -> int:
        """Exit status of a child that has ended, or is about to: -9 after SIGKILL."""
        self._requests.send(json.dumps({"kind": "status", "pid": pid}).encode())
        return int(json.loads(self._requests.recv(1000)))

    def close(self) -> None:
        """End the process that forks, and with it every child that is left."""
        self._requests.close()
        os.waitpid(self.pid, 0)


def _serve(requests: socket.socket) -> None:
    while True:
        message, ancillary, _, _ = requests.recvmsg(1 << 20, socket.CMSG_SPACE(8))
        if not message:
            os._exit(0)
        request = json.loads(message)
        if request["kind"] == "status":
            _, status = os.waitpid(request["pid"], 0)
            requests.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(request, parent, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(json.dumps(pid).encode())


def _become(request: dict[str, Any], parent: int, control: int, log: int) -> None:
    """Be a child; never returns."""
    status = 1
    try:
        die_with(parent)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, standard)
        os.close(log)
        faulthandler.enable()
        os.environ.update(request.get("environment", {}))
        status = CHILDREN[request["kind"]](request, socket.socket(fileno=control))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
