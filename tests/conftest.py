"""What tests share: the data folder, brokers, and the rule that a skip says why."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.run_file.loading import DATA_VARIABLE
from tests.device_installation import install_device
from tests.pacing import Pacing
from tests.postgres_server import PostgresServer, missing_postgres, running_server
from tests.shares import Share

NO_MOSQUITTO = "mosquitto is not installed here (Debian: mosquitto)"
NO_DATA = f"{DATA_VARIABLE} is not set to the folder with the datasets"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--limit-s``: see :mod:`tests.pacing`; the others: :mod:`tests.shares`."""
    parser.addoption("--limit-s", type=float, default=0.0, help="the most a test without a mark for it may take")
    parser.addoption("--within-minutes", type=float, default=0.0, help="tests that have not begun by then are skipped")
    parser.addoption("--order", default="", help="draws the order of the files, with --within-minutes")
    parser.addoption("--first", default="", help="folders and files that come first, commas between them")


def pytest_configure(config: pytest.Config) -> None:
    """Measures the tests where a limit is given, and ends where a time is."""
    if limit_s := config.getoption("--limit-s"):
        config.pluginmanager.register(Pacing(limit_s))
    if minutes := config.getoption("--within-minutes"):
        first = config.getoption("--first").split(",")
        config.pluginmanager.register(Share(config.getoption("--order"), minutes * 60, first))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, of which there is none: a third of the time went that way."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked ``data`` where there is no data folder, and says so."""
    if item.get_closest_marker("data") and not os.environ.get(DATA_VARIABLE):
        pytest.skip(NO_DATA)


@pytest.fixture(scope="session", autouse=True)
def _records_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which runs were begun here is written down for the tests alone, those in processes of their own too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the real datasets."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        pytest.skip(NO_DATA)
    path = Path(folder)
    assert path.is_dir(), f"{DATA_VARIABLE}={folder} is not a folder"
    return path


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts by export key, for all tests of this run: its processes share the folder."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has a folder of its own below the run's
        folder = folder.parent
    (folder / "exports").mkdir(exist_ok=True)
    return folder / "exports"


@pytest.fixture(scope="session")
def device_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the scripts of a fresh environment with the device's installation."""
    return install_device(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server; a test makes its own database in it."""
    if reason := missing_postgres():
        pytest.skip(reason)
    with running_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a ledger can be made: a file that is not there, an empty database; the test runs with each."""
    if request.param == "sqlite":
        return tmp_path / "ledger.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.emptied_database()


@pytest.fixture
def amqtt_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running embedded broker; ``restart()`` keeps its address."""
    with BrokerProcess("embedded", tmp_path / "amqtt") as process:
        yield process


@pytest.fixture
def mosquitto_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running Mosquitto over TCP."""
    yield from _mosquitto(tmp_path, tls=False)


@pytest.fixture
def mosquitto_tls_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running Mosquitto over TLS, with certificates made for it."""
    yield from _mosquitto(tmp_path, tls=True)


@pytest.fixture(params=["embedded", "mosquitto"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Each kind of broker that can be started here, in turn."""
    if request.param == "mosquitto":
        yield from _mosquitto(tmp_path, tls=False)
        return
    with BrokerProcess("embedded", tmp_path / "amqtt") as process:
        yield process


def _mosquitto(folder: Path, *, tls: bool) -> Iterator[BrokerProcess]:
    if find_mosquitto() is None:
        pytest.skip(NO_MOSQUITTO)
    with BrokerProcess("mosquitto", folder / "mosquitto", tls=tls) as process:
        yield process
