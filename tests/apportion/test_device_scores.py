"""What a history says of the devices' own scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apportion.history import History
from edge.contracts.errors import LedgerError


def test_scores_are_the_summarys(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no device has scored the final model; run to its end with \$\.evaluation"):
        _ = History(tmp_path).device_scores
    (tmp_path / "summary.json").write_text(json.dumps({"device_evaluation": {"devices": 3}}))
    assert History(tmp_path).device_scores == {"devices": 3}
