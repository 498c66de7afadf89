"""Adapters of mixed sizes, a prefix and a prompt in a federation over MQTT: torch's values, and the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.exporting.base_file import base_key
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import crash
from tests.language_models import run_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

KINDS = {
    "adapter": ("levels = [4, 2]\ndepths = [2, 1]", ("4 units, depth 2", "2 units, depth 1")),
    "prefix": ("levels = [3]\ndepths = [2, 1]", ("3 positions, depth 2", "3 positions, depth 1")),
    "prompt": ("levels = [3]", ("3 positions", "3 positions")),
}


def text_of(kind: str) -> str:
    options, levels = KINDS[kind]
    text = run_text(method=kind, options=options, rounds=2)
    for old, new in zip(("4", "2"), levels, strict=True):
        text = text.replace(f'level = "{old}"', f'level = "{new}"')
    return text


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_it_is_the_run_in_torch_and_the_base_travels_once(kind: str, tmp_path: Path) -> None:
    text = text_of(kind)
    config = load_config_text(text)
    start_run(config, tmp_path / "whole", RunOptions(quiet=True))
    crash(tmp_path / "killed", "recorded", 2, text=text)
    resume_run(tmp_path / "killed", RunOptions(quiet=True))
    assert final_bytes(tmp_path / "killed") == final_bytes(tmp_path / "whole")

    simulated(config, tmp_path / "simulated")
    got, expected, begun = (
        decode_tensors(data, where="final")
        for data in (final_bytes(tmp_path / "whole"), final_bytes(tmp_path / "simulated"), begun_bytes(text))
    )
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        moved = np.abs(value - begun[name]).max()
        assert moved > 0, name
        assert np.abs(got[name] - value).max() <= 5e-3 * moved, name

    with Ledger.open(tmp_path / "whole" / "ledger.sqlite") as ledger:
        base = ledger.artifacts.find(base_key(config))
        assert base is not None
        size, down = ledger.blobs.sizes()[base], dict[str, list[int]]()
        for entry in ledger.rounds.all():
            for update in ledger.updates.of_attempt(entry.round, entry.attempt):
                order = read_order(update.assignment.order)
                assert order.constants is not None
                assert order.constants.digest == base
                down.setdefault(update.report.device, []).append(update.report.bytes_down)
    for first, *later in down.values():
        assert first > size
        assert max(later) < 12_000


def begun_bytes(text: str) -> bytes:
    """What the run begins with, as a file of tensors."""
    config = load_config_text(text)
    return encode_tensors(method_of_run(config, dense_module(config)).init().tensors)


@pytest.mark.parametrize(
    "more",
    [
        '[aggregation]\nmode = "buffered"\nbuffer = 2\n',
        '[server-optimizer]\nname = "fedadam"\n',
        "[privacy]\nsecure-aggregation = true\n",
    ],
    ids=["buffered", "server-optimizer", "secure-aggregation"],
)
def test_entries_go_with_what_compares_moves_and_hides_them(more: str, tmp_path: Path) -> None:
    text = text_of("prefix").replace("\ndepths = [2, 1]", "")
    for depth in (2, 1):
        text = text.replace(f'level = "3 positions, depth {depth}"', 'level = "3 positions"')
    text = text.replace("[[cohort.local]]", "[cohort]\nmin-reports = 3\n[[cohort.local]]", 1)
    config = load_config_text(text + more)
    summary = start_run(config, tmp_path / "run", RunOptions(quiet=True))
    assert summary["rounds"] == 2
    got, begun = (decode_tensors(d, where="t") for d in (final_bytes(tmp_path / "run"), begun_bytes(text)))
    assert all(np.abs(got[name] - value).max() > 0 for name, value in begun.items())
    if "secure" in more:
        simulated(load_config_text(text), tmp_path / "plain")
        for name, value in decode_tensors(final_bytes(tmp_path / "plain"), where="plain").items():
            assert np.abs(got[name] - value).max() <= 5e-3 * np.abs(value - begun[name]).max()
