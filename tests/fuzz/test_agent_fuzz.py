"""Arbitrary bytes against everything an agent parses: one of our errors or nothing, and nothing is followed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.agent_parsers import AgentUnderFire, seeds

FUZZ = settings(max_examples=1500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
RUNS = 10_000
"""In the suite; ``make fuzz`` runs 100,000."""

SEEDS = seeds()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentUnderFire]:
    under_fire = AgentUnderFire(tmp_path_factory.mktemp("agent"))
    yield under_fire
    under_fire.store.close()


@FUZZ
@given(data=st.binary(max_size=600))
def test_random_bytes_are_refused(target: AgentUnderFire, data: bytes) -> None:
    target.take(data)
    assert target.findings() == []


@pytest.mark.slow
@FUZZ
@given(
    seed=st.sampled_from(range(len(SEEDS))),
    changes=st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 20_000),
)
def test_spoilt_sound_input_is_refused(
    target: AgentUnderFire, seed: int, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(SEEDS[seed])
    for place, value in changes:
        data[1 + place % (len(data) - 1)] = value
    target.take(bytes(data[: max(2, cut)]))
    assert target.findings() == []


def test_every_parser_is_reached_by_a_sound_input(target: AgentUnderFire) -> None:
    assert {data[0] for data in SEEDS} >= {0, 1, 3, 4, 5}
    assert len(SEEDS) > 40


@pytest.mark.slow
def test_coverage_guided_runs_find_nothing() -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this machine; the same parsers are tried by hypothesis above")
    command = [sys.executable, "-m", "tests.fuzz.coverage_guided", "--runs", str(RUNS)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert outcome["runs"] == RUNS
    assert outcome["findings"] == []
    assert outcome["rss_growth"] < 64 * 2**20
