"""Phones in browsers beside Python agents on MNIST by writer, and the same devices as Python agents alone: a table.

    APPORTION_DATA=... python -m benchmarks.web_federation runs/web-federation
    APPORTION_DATA=... python -m benchmarks.web_federation runs/web-federation --rounds 12 --phones 6 --local 6

Conv-2 under FedAvg over Mosquitto, eight writers per device. A phone has the id, the examples and the order of the
batches of the agent that it stands for, so the two runs differ by float arithmetic and by who answers when. Processors
of phones are slowed by the browser's own protocol (``--slower``), which reaches a page's main thread and not the worker
that trains; ``--duty`` stops whole browser processes for a part of every 40 ms besides, which reaches both. Every
fourth phone has a link of 4 Mbit/s and 60 ms. The last line of stdout is one JSON object. Needs the built page,
Chromium and Mosquitto, and the test requirements.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.web.conftest import chromium_path
from tests.web.mixed_run import MixedRun, final_model, recorded_updates, relative_l2
from tests.web.phone import Phone, wait_until

PERIOD_S = 0.04
LOOP = """() => {
  const began = performance.now();
  let sum = 0;
  for (let i = 0; i < 3e8; i++) sum += i % 7;
  return performance.now() - began;
}"""
ON_WORKER = f"""() => new Promise((done) => {{
  const code = `postMessage(({LOOP})())`;
  const worker = new Worker(URL.createObjectURL(new Blob([code], {{ type: "text/javascript" }})));
  worker.onmessage = ({{ data }}) => {{ worker.terminate(); done(data); }};
}})"""
LINK = {"megabit_per_s": 4.0, "latency_ms": 60.0}


def run_file(rounds: int, model: str) -> str:
    """The run file of both runs, as ``MixedRun`` takes it."""
    return f"""
[federation]
name = "web-federation"
seed = 1
rounds = {rounds}

[model]
build = "{model}"
input = [1, 28, 28]
classes = 10

[method]
name = "fedavg"

[training]
epochs = 1
batch = 32
last-batch = "keep"
lr = 0.03
lr-schedule = "cosine"
lr-final = 0.003
momentum = 0.9

[evaluation]
every = 0
batch = 500

[data]
source = "mnist-writers"
scale = 0.00392156862745098
mean = [0.1307]
std = [0.3081]
partition = "writer-groups"
devices = 67
"""


class DutyCycle:
    """Lets the renderers of a browser run for a share of every 40 ms: pages and their workers alike.

    Args:
        share: of the time in which they run; 1 changes nothing.
    """

    def __init__(self, browser: Browser, share: float) -> None:
        self._session = browser.new_browser_cdp_session()
        self._share = share
        self._pids: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duty cycle", daemon=True)

    def __enter__(self) -> DutyCycle:
        if self._share < 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def follow(self) -> None:
        """The renderers that there are now."""
        found = self._session.send("SystemInfo.getProcessInfo")["processInfo"]
        self._pids = [int(process["id"]) for process in found if process["type"] == "renderer"]

    def _run(self) -> None:
        while not self._ended.is_set():
            pids = self._pids
            _signal(pids, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - self._share))
            _signal(pids, signal.SIGCONT)
            time.sleep(PERIOD_S * self._share)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def opened_browser() -> Iterator[Browser]:
    """A headless Chromium of this machine."""
    path = chromium_path()
    if path is None:
        raise SystemExit("no Chromium is here; APPORTION_CHROMIUM names one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


def reached(slower: float, duty: float) -> list[dict[str, Any]]:
    """What each way of slowing reaches: milliseconds of one loop on the page's main thread and in a worker."""
    found = []
    with opened_browser() as browser:
        for how, rate, share in (("as it is", 1.0, 1.0), ("protocol", slower, 1.0), ("duty cycle", 1.0, duty)):
            with DutyCycle(browser, share) as cycle:
                phone = Phone(browser, slower=rate)
                phone.page.goto("about:blank")
                cycle.follow()
                main = min(phone.evaluate(LOOP) for _ in range(3))
                worker = min(phone.evaluate(ON_WORKER) for _ in range(3))
                found.append({"how": how, "rate": rate, "share": share, "main_ms": main, "worker_ms": worker})
                phone.close()
    return found


def measured(run: MixedRun, folder: Path, *, slower: float, duty: float, limit_s: float) -> dict[str, Any]:
    """Both runs of ``run`` below ``folder``."""
    print(f"{run.devices} Python agents alone", file=sys.stderr)
    alone = run.agents_alone(folder / "alone", timeout_s=limit_s)

    def phone(browser: Browser, number: int) -> Phone:
        cycle.follow()
        return Phone(browser, slower=slower, **(LINK if number % 4 == 3 else {}))

    print(f"{run.phones} phones and {run.local} Python agents", file=sys.stderr)
    with (
        opened_browser() as browser,
        DutyCycle(browser, duty) as cycle,
        run.with_phones(folder / "mixed", browser, phone) as (site, phones),
    ):
        cycle.follow()
        wait_until(site.is_over, limit_s, "the end of the run with phones", phones[0].page)
        mixed = site.summary(timeout_s=5)
    ours, theirs = final_model(folder / "mixed" / "run"), final_model(folder / "alone" / "run")
    return {
        "devices": {"local": run.local, "phones": run.phones},
        "slower": slower,
        "duty": duty,
        "accuracy": {"alone": alone["accuracy"], "mixed": mixed["accuracy"]},
        "wall_s": {"alone": alone["wall_s"], "mixed": mixed["wall_s"]},
        "model_rel_l2": max(relative_l2(ours[name], theirs[name]) for name in ours),
        "rows": rows(folder / "alone" / "run", "alone") + rows(folder / "mixed" / "run", "mixed"),
    }


def rows(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """One row per runtime of a run: medians over its updates."""
    updates = recorded_updates(run_dir)
    found = []
    for runtime in sorted({u.report.runtime for u in updates}):
        reports = [u.report for u in updates if u.report.runtime == runtime]
        found.append(
            {
                "run": name,
                "runtime": runtime,
                "updates": len(reports),
                "step_ms": statistics.median(r.step_ms_p50 for r in reports),
                "round_s": statistics.median(r.wall_s for r in reports),
                "trainer_peak_mb": max(r.trainer_peak_bytes for r in reports) / 2**20,
                "bytes_up": statistics.median(r.bytes_up for r in reports),
            }
        )
    return found


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    columns = ("run", "runtime", "updates", "step, median ms", "order to report, median s", "trainer's peak MB")
    lines = [f"| {' | '.join(columns)} | update MB | accuracy |", "|---" * (len(columns) + 2) + "|"]
    lines += [
        f"| {r['run']} | {r['runtime']} | {r['updates']} | {r['step_ms']:.1f} | {r['round_s']:.1f} | "
        f"{r['trainer_peak_mb']:.0f} | {r['bytes_up'] / 1e6:.2f} | {result['accuracy'][r['run']]:.4f} |"
        for r in result["rows"]
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of both runs; made here")
    parser.add_argument("--model", default="conv2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--local", type=int, default=4)
    parser.add_argument("--phones", type=int, default=4)
    parser.add_argument("--slower", type=float, default=4.0, help="times, of a page's main thread")
    parser.add_argument("--duty", type=float, default=1.0, help="share of the time in which phones run at all")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of either run")
    parser.add_argument("--only-throttling", action="store_true", help="measure what --slower and --duty reach")
    given = parser.parse_args(arguments)
    if given.only_throttling:
        print(json.dumps(reached(given.slower, given.duty)))
        return 0
    if given.folder.exists():
        parser.error(f"{given.folder} is there already; name another folder")
    run = MixedRun(run_file(given.rounds, given.model), given.local, given.phones, deadline_s=given.limit_s)
    result = measured(run, given.folder.resolve(), slower=given.slower, duty=given.duty, limit_s=given.limit_s)
    print(table(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
