"""Pictures of the docs: ``apportion top``, a report and a comparison, of runs that are made for them here.

``python -m tests.pictures.run_pages`` runs a federation of eight processes and six simulations (minutes), and writes
``docs/pictures/{top,report,compare}.png``; with ``run`` or ``compare`` behind it those of it alone. Figures in the
pictures are what these runs gave.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from coordinator.history.history import History
from coordinator.terminal.app import Top
from edge.contracts.errors import ApportionError

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "pictures"
APPORTION = [sys.executable, "-m", "edge"]
COLUMNS, LINES = 104, 28

RUN = f"""
extends = "{ROOT}/examples/digits.toml"
[federation]
rounds = 8
[training]
epochs = 10
lr = 0.03
[evaluation]
every = 1
"""
SMALL = """
[federation]
name = "{name}"
rounds = 20
[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [256, 256] }}
[method]
{method}
[training]
batch = 32
last-batch = "wrap"
lr = 0.05
momentum = 0.9
[data]
source = "digits"
partition = "dirichlet"
alpha = 0.3
scale = 0.0625
[evaluation]
every = 1
[cohort]
min-reports = 4
[[cohort.local]]
count = 8
"""
METHODS = {"fedavg": 'name = "fedavg"', "fedhm": 'name = "fedhm"\nlevels = [4]'}


def main() -> None:
    """Make the three pictures."""
    OUT.mkdir(exist_ok=True)
    parts = {"compare": compared, "run": followed}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for part in sys.argv[1:] or parts:
            parts[part](Path(folder), browser)


def followed(work: Path, browser: Browser) -> None:
    """A run: the terminal after its third round, the report at its end."""
    (work / "digits.toml").write_text(RUN)
    run_dir = work / "runs" / "digits"
    run = subprocess.Popen([*APPORTION, "run", "digits.toml", "--run-dir", "runs/digits", "--quiet"], cwd=work)
    try:
        while run.poll() is None and not committed(run_dir, 3):
            time.sleep(0.5)
        # In a thread: the browser's own loop runs in this one.
        with ThreadPoolExecutor(1) as beside:
            beside.submit(asyncio.run, terminal(run_dir, work / "top.svg")).result()
        status = run.wait()
    finally:
        run.terminate()
        run.wait()
    drawn(browser, work / "top.svg", OUT / "top.png")
    if status != 0:
        raise SystemExit(f"the run ended with {status}")
    subprocess.run([*APPORTION, "report", "runs/digits", "--out", "report.html"], cwd=work, check=True)
    page(browser, work / "report.html", OUT / "report.png", height=1640)


def compared(work: Path, browser: Browser) -> None:
    """Two methods with three seeds each."""
    runs = []
    for name, method in METHODS.items():
        (work / f"{name}.toml").write_text(SMALL.format(name=name, method=method))
        for seed in range(3):
            runs.append(f"runs/{name}-{seed}")
            arguments = ["simulate", f"{name}.toml", "--seed", str(seed), "--run-dir", runs[-1], "--quiet", "--json"]
            subprocess.run([*APPORTION, *arguments], cwd=work, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*APPORTION, "compare", *runs, "--out", "compare.html"], cwd=work, check=True)
    page(browser, work / "compare.html", OUT / "compare.png", height=1180)


async def terminal(run_dir: Path, file: Path) -> None:
    """The screen of ``apportion top`` while a round is under way, as SVG."""
    with History.of(run_dir) as history:
        app = Top(history)
        async with app.run_test(size=(COLUMNS, LINES)) as pilot:
            give_up_at = time.monotonic() + 30
            while time.monotonic() < give_up_at and not any(
                view.status == "training" for view in (app.shown_look.devices if app.shown_look else ())
            ):
                await pilot.pause(0.1)
            await pilot.pause(1.0)
            file.write_text(app.export_screenshot(title="apportion top runs/digits"))


def committed(run_dir: Path, rounds: int) -> bool:
    """Whether so many rounds are done."""
    try:
        with History.of(run_dir) as history:
            return history.run().rounds_committed >= rounds
    except ApportionError:  # not begun yet
        return False


def page(browser: Browser, file: Path, out: Path, *, height: int) -> None:
    """The upper part of a page, at the width of a desktop."""
    view = browser.new_page(viewport={"width": 1180, "height": height})
    view.goto(file.as_uri())
    view.screenshot(path=out)
    view.close()
    fewer_colours(out)


def drawn(browser: Browser, file: Path, out: Path) -> None:
    """An SVG as a picture."""
    view = browser.new_page(viewport={"width": 1180, "height": 900})
    view.set_content(f"<body style='margin:0'>{file.read_text().replace('<svg ', '<svg width=1180 ', 1)}</body>")
    view.locator("svg").first.screenshot(path=out)
    view.close()
    fewer_colours(out)


def fewer_colours(out: Path) -> None:
    """A palette in place of all colours: a third of the bytes."""
    Image.open(out).convert("RGB").quantize(256).save(out, optimize=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine."""
    where = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield browser
        browser.close()


if __name__ == "__main__":
    main()
