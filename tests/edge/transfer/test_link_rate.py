"""The link's rate: long transfers count, the last eight, the median; a broken file costs the rate only."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.contracts.messages import Block, Get
from edge.supervisor.presence import Presence
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.fetcher import Fetcher
from edge.transfer.link_rate import LinkRate
from profiles.device import DeviceProfile
from tests.edge.tiny_artifact import ref


def served(fetcher: Fetcher, asked: list[Get], data: bytes, *, begin: float, seconds: float) -> None:
    """Answer every get; time passes evenly over ``seconds``."""
    done = 0
    while asked:
        get = asked.pop(0)
        done += get.length
        block = Block(get.digest, get.offset, len(data), data[get.offset : get.offset + get.length])
        fetcher.received(block, begin + seconds * done / len(data))


def test_the_rate_is_the_median_of_the_last_eight(tmp_path: Path) -> None:
    rate = LinkRate(tmp_path)
    assert (rate.bytes_per_s, rate.measured_at) == (None, 0.0)
    rate.add(255_999, 0.001)  # too short to tell anything
    rate.add(1_000_000, 0.0)
    assert rate.bytes_per_s is None
    for seconds in (100.0, 100.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        rate.add(1_000_000, seconds)
    again = LinkRate(tmp_path)
    assert again.bytes_per_s == rate.bytes_per_s == 500_000.0
    assert again.measured_at > 1_700_000_000


def test_a_fetch_measures_the_link_and_the_hello_says_so(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    asked: list[Get] = []
    fetcher = Fetcher(store, asked.append)
    data = bytes(range(256)) * 4000
    fetcher.want(ref(data), 10.0)
    served(fetcher, asked, data, begin=10.0, seconds=4.0)
    assert fetcher.is_done
    presence = Presence(AgentSettings(federation="f", device="pi-07", data="d", python="p"), tmp_path, Path("/"))
    profile = presence.profile()
    assert profile.link_bytes_per_s == pytest.approx(256_000)
    assert (profile.link_method, profile.sources["link_bytes_per_s"]) == ("transfers", "link.json, 1 transfers")
    assert profile.link_measured_at > 1_700_000_000
    store.close()


def test_a_transfer_with_a_break_in_it_does_not_count(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    asked: list[Get] = []
    fetcher = Fetcher(store, asked.append)
    data = bytes(1_000_000)
    fetcher.want(ref(data), 0.0)
    asked.clear()
    fetcher.reconnected(500.0)
    served(fetcher, asked, data, begin=500.0, seconds=1.0)
    assert fetcher.is_done
    assert LinkRate(tmp_path).bytes_per_s is None
    store.close()


@pytest.mark.parametrize(
    "text", ["", "{", '{"transfers": [{"bytes_per_s": -1, "at": 1}]}', '{"schema": "x", "transfers": []}']
)
def test_a_file_that_is_none_counts_as_no_transfers(tmp_path: Path, text: str) -> None:
    (tmp_path / "link.json").write_text(text)
    profile = DeviceProfile(device="pi-07")
    assert LinkRate(tmp_path).put_into(profile) is profile


def test_a_place_that_cannot_be_written_costs_the_rate_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rate = LinkRate(tmp_path / "file")
    rate.add(1_000_000, 1.0)
    assert rate.bytes_per_s == 1_000_000.0
    assert LinkRate(tmp_path / "file").bytes_per_s is None
