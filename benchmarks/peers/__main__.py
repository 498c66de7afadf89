"""``python -m benchmarks.peers SIDE ... --flower PYTHON --flare PYTHON``: the table's figures, or what a kill does.

PYTHON is of an environment that has the peer and torch. Run as root: each run has a network namespace of its own. Lines
of JSON go to stdout, one a run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.federatedscope import FederatedScope
from benchmarks.peers.lines import of_folder
from benchmarks.peers.processes import CLIENT, SERVER, Memory, below, collect_ended, kill, marked, memory, with_roles
from benchmarks.peers.shares import accuracy, write_shares
from benchmarks.peers.sides import APPS, DEVICES, Apportion, Flare, Flower, Side
from benchmarks.peers.wire import Wire, adopt_orphans, in_own_network

PEERS = {"flower": Flower, "flare": Flare, "federatedscope": FederatedScope}
SAMPLE_S = 0.25
KILLED_DEVICE = 3


class Watched:
    """A side's run as it is sampled: its processes, memory, seconds and bytes."""

    def __init__(self, side: Side, wire: Wire) -> None:
        self.side, self._wire = side, wire
        self.started, self.peaks = time.perf_counter(), dict[str, Memory]()
        self.round_ends: list[tuple[int, float, float, int]] = []
        self._ended_cpu_s = 0.0

    def sample(self) -> dict[int, str]:
        """Look once; process id -> role."""
        self._ended_cpu_s += collect_ended()
        processes = below(os.getpid())
        roles = with_roles(processes, self.side.role)
        self._wire.look(roles)
        for role in (SERVER, CLIENT):
            now = memory(pid for pid, its in roles.items() if its == role)
            self.peaks[role] = self.peaks.get(role, Memory()).most(now)
        self.cpu_s = self._ended_cpu_s + sum(process.cpu_s for process in processes.values())
        self.seconds = time.perf_counter() - self.started
        rounds = self.side.rounds_over()
        if rounds and (not self.round_ends or rounds > self.round_ends[-1][0]):
            self.round_ends.append((rounds, self.seconds, self.cpu_s, self.between()))
        return roles

    def between(self) -> int:
        """Bytes so far between devices and the server."""
        parts = [{SERVER, CLIENT}]
        if self.side.has_short_connections:
            parts += [{SERVER, ""}, {CLIENT, ""}]
        return sum(count for pair, count in self._wire.sums().items() if set(pair) in parts)

    def until_over(self, limit_s: float) -> bool:
        """Sample to the end of the run; False: it did not come."""
        give_up_at = time.perf_counter() + limit_s
        while time.perf_counter() < give_up_at:
            self.sample()
            if self.side.is_over():
                return True
            time.sleep(SAMPLE_S)
        return False

    def until_round(self, number: int, limit_s: float) -> bool:
        """Sample until so many rounds are over."""
        give_up_at = time.perf_counter() + limit_s
        while time.perf_counter() < give_up_at:
            self.sample()
            if self.side.rounds_over() >= number or self.side.is_over():
                return True
            time.sleep(SAMPLE_S)
        return False


def measured(side: Side, wire: Wire, start: Callable[[], None]) -> dict[str, Any]:
    """A whole run's figures."""
    watched = Watched(side, wire)
    start()
    submitted = time.perf_counter() - watched.started
    is_over = watched.until_over(300.0)
    sums = {f"{a or '?'} to {b or '?'}": count for (a, b), count in sorted(wire.sums().items())}
    ends = watched.round_ends
    steady = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(ends)]
    first, last = ends[0], ends[-1]
    rounds = max(1, last[0] - first[0])
    return {
        "is_over": is_over,
        "rounds": last[0],
        "submitted_s": round(submitted, 2),
        "first_round_s": round(first[1], 2),
        "whole_s": round(watched.seconds, 2),
        "whole_cpu_s": round(watched.cpu_s, 2),
        "round_s": round((last[1] - first[1]) / rounds, 3),
        "median_round_s": round(sorted(steady)[len(steady) // 2], 3) if steady else None,
        "round_cpu_s": round((last[2] - first[2]) / rounds, 3),
        "round_mb": round((last[3] - first[3]) / rounds / 1e6, 3),
        "whole_mb": round(watched.between() / 1e6, 3),
        "mb": {name: round(count / 1e6, 3) for name, count in sums.items()},
        "ledger_mb": round(side.own_count() / 1e6, 3) if isinstance(side, Apportion) else None,
        "dropped": wire.dropped(),
        "server_pss_mb": round(watched.peaks[SERVER].pss),
        "server_rss_mb": round(watched.peaks[SERVER].rss),
        "device_pss_mb": round(watched.peaks[CLIENT].pss / DEVICES, 1),
        "device_rss_mb": round(watched.peaks[CLIENT].rss / DEVICES, 1),
        "accuracy": round(accuracy(side.model_file(), side.folder), 4) if is_over else None,
    }


def killed(side: Side, wire: Wire, what: str, patience_s: float) -> dict[str, Any]:
    """What happens after ``kill -9`` of the server, or of a device, in the middle of a run."""
    watched = Watched(side, wire)
    side.start()
    watched.until_round(side.rounds // 2, 200.0)
    time.sleep(0.4)
    roles = watched.sample()
    before = side.rounds_over()
    processes = below(os.getpid())
    if what == SERVER:
        pids = [pid for pid, role in roles.items() if role == SERVER]
    else:
        pids = [pid for pid in marked(processes, side.mark(KILLED_DEVICE)) if roles.get(pid) == CLIENT]
    kill(pids)
    killed_at = time.perf_counter()
    events: dict[str, Any] = {"killed": what, "processes": len(pids), "rounds_before": before}
    watched.until_round(side.rounds + 1, 15.0 if what == SERVER else patience_s)
    events["alone"] = {"rounds": side.rounds_over(), "is_over": side.is_over(), "alive": counted(watched.sample())}
    if not side.is_over():
        restarted_at = time.perf_counter()
        if what == SERVER:
            side.start_server_again()
        else:
            side.start_device_again(KILLED_DEVICE)
        is_over = watched.until_over(patience_s)
        events["after_restart"] = {
            "is_over": is_over,
            "rounds": side.rounds_over(),
            "seconds": round(time.perf_counter() - restarted_at, 1),
            "alive": counted(watched.sample()),
        }
    events["seconds_from_kill"] = round(time.perf_counter() - killed_at, 1)
    events["round_ends_s"] = [round(end[1], 1) for end in watched.round_ends]
    events["accuracy"] = round(accuracy(side.model_file(), side.folder), 4) if side.is_over() else None
    return events


def counted(roles: dict[int, str]) -> dict[str, int]:
    """Role -> processes."""
    return {role: list(roles.values()).count(role) for role in (SERVER, CLIENT)}


def one(name: str, arguments: argparse.Namespace, folder: Path) -> None:
    """One run in this process, which has a loopback of its own; its line goes to stdout."""

    def run() -> None:
        adopt_orphans()
        write_shares(folder)
        side: Side
        if name == "apportion":
            side = Apportion(folder, arguments.rounds)
        else:
            side = PEERS[name](folder, arguments.rounds, Path(getattr(arguments, name)))
            if isinstance(side, Flower):
                side.keeps_state = arguments.flower_database
        load = os.getloadavg()[0]
        with Wire() as wire:
            try:
                if arguments.kill:
                    figures = killed(side, wire, arguments.kill, arguments.patience)
                else:
                    figures = measured(side, wire, side.simulate if arguments.simulate else side.start)
            finally:
                kill(below(os.getpid()))
                time.sleep(0.5)
                collect_ended()
        line = {"side": name, "load": [round(load, 2), round(os.getloadavg()[0], 2)], **figures}
        print(json.dumps(line), flush=True)

    in_own_network(run)


def main() -> None:
    """Sides in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("sides", nargs="*", help="of apportion, flower, flare and federatedscope")
    parser.add_argument("--flower", default="", help="python of an environment with flwr and torch")
    parser.add_argument("--flower-database", action="store_true", help="the SuperLink keeps its state in a file")
    parser.add_argument("--flare", default="", help="python of an environment with nvflare and torch")
    parser.add_argument("--federatedscope", default="", help="python of an environment with it and its own torch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--kill", choices=[SERVER, CLIENT], default="", help="in the middle, with SIGKILL")
    parser.add_argument("--simulate", action="store_true", help="apportion and flare: their simulators, two processes")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds to wait after a kill")
    parser.add_argument("--keep", default="", help="folder that logs are kept in")
    parser.add_argument("--lines", action="store_true", help="count what a user writes, and end")
    arguments = parser.parse_args()
    if arguments.lines:
        for folder in sorted(APPS.iterdir()):
            print(json.dumps({"side": folder.name, **of_folder(folder)}))
        return
    for name in arguments.sides:
        if name != "apportion" and (name not in PEERS or not getattr(arguments, name)):
            parser.error(f"{name}: give apportion, or one of {', '.join(PEERS)} and --NAME PYTHON for it")
    for turn in range(arguments.turns):
        for name in arguments.sides:
            with tempfile.TemporaryDirectory(prefix="apportion-peers-", ignore_cleanup_errors=True) as temporary:
                folder = Path(arguments.keep, f"{name}-{arguments.kill}{turn}") if arguments.keep else Path(temporary)
                folder.mkdir(parents=True, exist_ok=True)
                child = multiprocessing.get_context("fork").Process(target=one, args=(name, arguments, folder))
                child.start()
                child.join()


if __name__ == "__main__":
    main()
