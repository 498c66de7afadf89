"""What a masked cohort stands, by hand for some sizes and by its two inequalities for all."""

from __future__ import annotations

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.privacy import PrivacyConfig
from coordinator.privacy.guarantee import LEAST, guarantee_of
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from edge.contracts.masking import MAX_COHORT
from tests.federation.small_run import config_text

MASKED = "[privacy]\nsecure-aggregation = true\n"


@pytest.mark.parametrize(
    ("size", "threshold", "honest", "reports"),
    # ceil(0.67 size), more than half; half of the (size - threshold) that may be missing, rounded up, and 1 at least.
    [(3, 3, 1, 3), (4, 3, 1, 3), (5, 4, 1, 4), (7, 5, 1, 5), (10, 7, 2, 8), (20, 14, 3, 16), (100, 67, 17, 83)],
)
def test_default_of_a_cohort_by_hand(size: int, threshold: int, honest: int, reports: int) -> None:
    guarantee = guarantee_of(PrivacyConfig(), size)
    assert guarantee[1:] == (threshold, honest)
    assert (guarantee.reports, guarantee.missing) == (reports, size - reports)


@pytest.mark.parametrize("share", [0.51, 0.6, 0.67, 0.9, 1.0])
def test_sums_of_every_size_leave_so_many_honest_updates_and_no_two_halves_can_unmask(share: float) -> None:
    for size in range(LEAST, MAX_COHORT + 1):
        guarantee = guarantee_of(PrivacyConfig(recovery_share=share), size)
        assert guarantee.reports - (guarantee.threshold - 1) >= guarantee.honest >= 1
        assert guarantee.threshold <= guarantee.reports <= size
        for named in range(min(guarantee.threshold, 8)):
            left = guarantee.without(named)
            colluders = guarantee.threshold - 1 - named
            for roster in {left.reports, (left.reports + size - named) // 2, size - named}:
                assert colluders < left.threshold_among(roster)
                assert 2 * left.threshold_among(roster) > roster
            assert left.reports - colluders >= guarantee.honest


def test_number_of_honest_updates_is_the_run_files() -> None:
    assert guarantee_of(PrivacyConfig(least_honest=5), 20).reports == 18
    text = config_text(rounds=1, size=20, local=0).replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    text = text.replace("frobenius-lambda = 0.0001", "")
    loaded = load_config_text(f"{text}\n{MASKED}least-honest = 5\n")
    assert loaded.privacy.least_honest == 5
    assert "least-honest = 5" in canonical_toml(loaded)
    assert "least-honest" not in canonical_toml(load_config_text(f"{text}\n{MASKED}"))
    with pytest.raises(ConfigError, match=r"\$\.privacy\.least-honest: 8 beside 13 .* are 21 in a sum, .* is 20"):
        load_config_text(f"{text}\n{MASKED}least-honest = 8\n")
    with pytest.raises(ConfigError, match=r"\$\.privacy\.least-honest.* belongs to secure-aggregation"):
        load_config_text(f"{text}\n[privacy]\nleast-honest = 2\n")
