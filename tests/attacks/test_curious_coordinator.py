"""A coordinator that keeps to the protocol, t - 1 members and the broker together, over attempts and runs.

No mask is left that they can take off, and no difference of what they have is a single honest update. That they would
find one is shown by planting what older releases did.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.supervisor.masking_state import MaskingFiles
from tests.attacks.curious_federation import Curious

pytestmark = pytest.mark.slow

RUN_A, RUN_B = "aa" * 16, "bb" * 16
HONEST = tuple(f"h{i:02}" for i in range(27))
COLLUDING = tuple(f"c{i:02}" for i in range(16))
FIRST = (*HONEST[:9], *COLLUDING[:8])
"""Seventeen, nine of which take a mask off: eight of them collude."""
LIMIT = 0.1


@pytest.fixture
def federation(tmp_path: Path) -> Curious:
    return Curious(tmp_path, HONEST, COLLUDING)


def test_no_difference_of_uploads_or_sums_is_a_single_update(
    federation: Curious, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = FIRST, (*HONEST[9:18], HONEST[0], *COLLUDING[8:])
    federation.attempt((RUN_A, 0, 0), first, spoils=("c00", "h01"))  # found out, and it opens
    federation.attempt((RUN_A, 0, 1), first, complains=("h05", "h02"))  # an honest one opens, for changed mail
    # One is left out because its complaint is kept back, two are dropped after their uploads; the answers do not
    # reach the coordinator, but the broker has them.
    federation.attempt((RUN_A, 0, 2), first, spoils=("c02", "h00"), is_withheld=True, vanish=("h03", "c03"), answers=5)
    federation.attempt((RUN_A, 0, 3), second, vanish=("h10",))
    # Whoever told takes no order for these weights any more, in whatever run.
    assert federation.attempt((RUN_A, 0, 4), first).uploads == {}
    federation.attempt((RUN_A, 1, 0), first, weights="v")
    assert federation.attempt((RUN_B, 0, 0), (*first, *second)).uploads == {}
    federation.attempt((RUN_B, 0, 1), (*HONEST[18:], "h03", "h10", *COLLUDING[:8]), vanish=("h20",))
    federation.attempt((RUN_B, 1, 0), first, weights="u", vanish=("h05",))
    masked, of_sums = federation.largest()
    vectors = len(federation.vectors()[0])
    with capsys.disabled():
        print(
            f"\n{vectors} vectors and all their differences: largest correlation with a single update {masked:.3f}; of "
            f"sums that were given out and their differences {of_sums:.3f}, {federation.fewest()} honest in the least"
        )
    assert masked < LIMIT
    # What a sum of k updates tells by itself is 1 / sqrt(k) of each.
    assert of_sums < 1 / federation.fewest() ** 0.5 + 0.03


def keys_are_reused(federation: Curious, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs without a nonce, whose devices have the same keys in both."""
    monkeypatch.setattr(MaskingFiles, "told", lambda files: {})
    for scale in (1.0, 0.2):
        drawn = itertools.count(1)
        monkeypatch.setattr(
            "edge.supervisor.masked_round.new_private",
            lambda: hashlib.sha256(str(next(drawn)).encode()).digest(),  # noqa: B023
        )
        federation.scale = scale
        federation.forget_runs()
        federation.attempt(("", 0, 0), FIRST, answers=0)


def two_sums_are_told(federation: Curious, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that answer for a model as often as they are asked."""
    monkeypatch.setattr(MaskingFiles, "told", lambda files: {})
    federation.attempt((RUN_A, 0, 0), FIRST)
    federation.attempt((RUN_A, 0, 1), FIRST, vanish=("h04",))


def opened_devices_mask_on(federation: Curious, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that opened shares for a complaint masks its update under the same secrets."""
    federation.opened_mask_on = True
    federation.attempt((RUN_A, 0, 0), FIRST, complains=("h05", "h02"))


@pytest.mark.parametrize("plant", [keys_are_reused, two_sums_are_told, opened_devices_mask_on])
def test_what_older_releases_did_is_found(
    federation: Curious, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Curious, pytest.MonkeyPatch], None]
) -> None:
    plant(federation, monkeypatch)
    assert max(federation.largest()) > 0.9
