"""The answer to COMMIT is lost on its way: nobody hears that nothing changed, and an update counts once either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.ledger.connections import LedgerAway
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from tests.coordinator.ledger.test_rounds import FEDERATION, collecting, report
from tests.coordinator.rounds.test_engine import TEXT
from tests.coordinator.rounds.test_full_disk import begun, finished
from tests.lossy_proxy import CutAt, LossyProxy
from tests.postgres_server import PostgresServer


def through(address: str, server: PostgresServer, proxy: LossyProxy) -> str:
    return address.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.parametrize("at", ["question", "answer"])
def test_update_whose_commit_was_not_answered_counts_once(postgres_server: PostgresServer, at: CutAt) -> None:
    address = postgres_server.new_database()
    with Ledger.create(address, federation=FEDERATION, config="", seed=0) as direct:
        (entry,) = collecting(direct, "a")
        with (
            LossyProxy(postgres_server.port, nth=1, at=at) as proxy,
            Ledger.open(through(address, postgres_server, proxy), federation=FEDERATION) as ledger,
        ):
            with pytest.raises(LedgerAway, match=r"the answer to COMMIT was lost .* is there or it is not, whole"):
                ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=1, report=report(entry))
            assert proxy.cuts == 1
            # The device was not acknowledged, and reports again; the same process goes on by itself.
            is_new = ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=1, report=report(entry))
            assert is_new == (at == "question")
        assert direct.updates.devices(0, 0) == ("a",)
        assert direct.audit.findings() == []


@pytest.mark.slow
@pytest.mark.parametrize("at", ["question", "answer"])
def test_run_cut_at_each_single_commit_stops_and_resumes_to_the_same_bits(
    postgres_server: PostgresServer, tmp_path: Path, at: CutAt
) -> None:
    begun(tmp_path / "undisturbed")
    undisturbed = finished(tmp_path / "undisturbed")
    text = canonical_toml(load_config_text(TEXT))
    nth = 0
    while True:
        nth += 1
        address = postgres_server.new_database()
        Ledger.create(address, federation="in-memory", config=text, seed=1).close()
        folder = tmp_path / f"{nth}"
        folder.mkdir()
        with LossyProxy(postgres_server.port, nth=nth, at=at) as proxy:
            try:
                bits = finished(folder, through(address, postgres_server, proxy))
            except LedgerAway:
                bits = finished(folder, address)
            assert bits == undisturbed, nth
            if not proxy.cuts:
                break
    assert nth > 12
