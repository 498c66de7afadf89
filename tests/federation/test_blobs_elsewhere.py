"""A run whose blobs are kept at an address: it ends with the bits of one in a folder, and the folder may be lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.remote import RemoteFolder
from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.__main__ import main
from tests.federation.small_run import config_text, crash

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.runtime,
    # s3fs and what it stands on leave connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(params=["file", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, str]]]:
    """An address, and the environment that leads there."""
    if request.param == "file":
        yield f"file://{tmp_path}/there", {}
        return
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed here (pip install 'apportion[s3]')")
    server_of = pytest.importorskip("moto.server", reason="moto is not installed here (pip install 'apportion[dev]')")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something-that-is-nowhere-else",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("models")
    yield "s3://models/runs/small", environment
    server.stop()


def test_machine_whose_copies_are_lost_goes_on_with_the_same_bits(
    place: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, environment = place
    settings = config_text(rounds=2, join_timeout_s=240.0)
    undisturbed, run_dir = tmp_path / "undisturbed", tmp_path / "run"
    start_run(load_config_text(settings), undisturbed, RunOptions(quiet=True))
    crash(run_dir, "aggregating", 2, text=settings + f'\n[store]\nblobs = "{url}"\n', environment=environment)
    shutil.rmtree(run_dir / "blobs")
    resume_run(run_dir, RunOptions(quiet=True))
    final = Path("checkpoints") / "final.safetensors"
    assert (run_dir / final).read_bytes() == (undisturbed / final).read_bytes()
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (0, 0, "committed"),
            (1, 0, "committed"),
        ]
        assert {entry.digest for entry in RemoteFolder(url).entries()} == ledger.blobs.sizes().keys()
    assert main(["fsck", str(run_dir), "--deep"]) == 0
    left = [path for path in run_dir.rglob("*") if path.is_file() and b"nowhere-else" in path.read_bytes()]
    assert left == []
