"""The rule that a test without a mark is quick."""

from __future__ import annotations

import pytest

from tests import pacing

pytest_plugins = ["pytester"]

TESTS = """
import time
import pytest

def test_quick(): pass
def test_slow(): time.sleep(0.12)

@pytest.mark.slow
def test_marked(): time.sleep(0.12)

@pytest.fixture
def own(): time.sleep(0.12)

@pytest.fixture(scope="module")
def shared(): time.sleep(0.12)

def test_with_a_fixture_of_its_own(own): pass
def test_with_a_shared_fixture(shared): pass
"""


def passed_of(pytester: pytest.Pytester, limit_s: float) -> list[str]:
    pytester.makeini("[pytest]\nmarkers =\n  slow: takes long\n")
    pytester.makepyfile(TESTS)
    run = pytester.inline_run("-p", "no:cacheprovider", plugins=[pacing.Pacing(limit_s)])
    return sorted(report.nodeid.partition("::")[2] for report in run.listoutcomes()[0])


def test_what_takes_longer_without_a_mark_fails(pytester: pytest.Pytester) -> None:
    assert passed_of(pytester, 0.06) == ["test_marked", "test_quick", "test_with_a_shared_fixture"]
