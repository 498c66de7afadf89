"""Code, keys and variables that somebody else's artifact, run directory, run file or ledger names are not used unless
that is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from coordinator.cli import assembly
from coordinator.cli.open_run import RunOptions
from coordinator.cli.own_runs import is_own, records_folder
from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import BrokerConfig, RunConfig, TlsFiles
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from tests.cli.conftest import Command
from tests.federation.small_run import config_text
from tests.postgres_server import PostgresServer

HOSTILE = "subprocess:getoutput"


def naming_code(tmp_path: Path) -> RunConfig:
    """A configuration whose model is a function of the standard library."""
    config = load_config_text(config_text(rounds=1))
    model = msgspec.structs.replace(config.model, build=HOSTILE, options={"cmd": f"touch {tmp_path}/ran"})
    return msgspec.structs.replace(config, model=model)


def unpacked(tmp_path: Path, config: RunConfig) -> Path:
    """A run's directory as it comes out of an archive: for its owner alone, and begun elsewhere."""
    folder = tmp_path / "unpacked"
    folder.mkdir(mode=0o700)
    text = canonical_toml(config)
    (folder / "config.toml").write_text(text)
    (folder / "config.toml").chmod(0o600)
    Ledger.create(folder / "ledger.sqlite", federation=config.federation.name, config=text, seed=1).close()
    (folder / "ledger.sqlite").chmod(0o600)
    return folder


def test_reading_a_run_file_runs_no_code(tmp_path: Path) -> None:
    text = config_text(rounds=1)
    build = f'build = "{HOSTILE}"\ninput = [4]\nclasses = 2\noptions = {{ cmd = "touch {tmp_path}/ran" }}\n'
    start, end = text.index("[model]"), text.index("[method]")
    config = load_config_text(f"{text[:start]}[model]\n{build}{text[end:]}")
    assert config.model.build == HOSTILE
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories in which a run went on to its rounds, which are left out."""
    reached: list[Path] = []

    def rounds(config: RunConfig, run_dir: Path, options: RunOptions, **_: object) -> dict[str, object]:
        reached.append(run_dir)
        return {"accuracy": 0.0, "rounds": 0, "devices": 0, "levels": 0, "wall_s": 0.0, "device_table": []}

    monkeypatch.setattr(assembly, "_run", rounds)
    return reached


def test_resume_runs_no_code_of_a_directory_that_was_not_begun_here(command: Command, tmp_path: Path) -> None:
    outcome = command("resume", unpacked(tmp_path, naming_code(tmp_path)), "--json")
    assert outcome.status == 2
    assert f"was not begun here and names code to run, {HOSTILE}" in outcome.error["message"]
    assert "--allow-code" in outcome.error["message"]
    assert not (tmp_path / "ran").exists()


def test_resume_begins_no_code_of_a_directory_without_a_ledger(command: Command, tmp_path: Path) -> None:
    folder = unpacked(tmp_path, naming_code(tmp_path))
    (folder / "ledger.sqlite").unlink()
    outcome = command("resume", folder, "--json")
    assert outcome.status == 2
    assert f"names code to run, {HOSTILE}" in outcome.error["message"]
    assert not (tmp_path / "ran").exists()


def test_run_that_was_begun_here_is_resumed_wherever_it_lies(
    command: Command, tmp_path: Path, begun: list[Path]
) -> None:
    (tmp_path / "run.toml").write_text(canonical_toml(naming_code(tmp_path)))
    assert command("run", tmp_path / "run.toml", "--run-dir", tmp_path / "run", "--quiet", "--json").status == 0
    (tmp_path / "run").rename(tmp_path / "moved")
    assert command("resume", tmp_path / "moved", "--quiet", "--json").status == 0
    assert begun == [tmp_path / "run", tmp_path / "moved"]
    assert records_folder().stat().st_mode & 0o777 == 0o700


def test_nonce_of_a_run_that_was_begun_here_covers_no_other_configuration(
    command: Command, tmp_path: Path, begun: list[Path]
) -> None:
    assembly.start_run(naming_code(tmp_path), tmp_path / "run", RunOptions(quiet=True))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert is_own(ledger.federation())
        other = ledger.federation().config.replace(HOSTILE, "os:system")
        with ledger._file.transaction() as sql:
            sql.exec_driver_sql("UPDATE federation SET config = ?", (other,))
        assert not is_own(ledger.federation())
    outcome = command("resume", tmp_path / "run", "--json")
    assert outcome.status == 2
    assert "names code to run, os:system" in outcome.error["message"]


def test_run_without_a_record_of_its_own_is_of_somebody_else(tmp_path: Path, begun: list[Path]) -> None:
    assembly.start_run(naming_code(tmp_path), tmp_path / "run", RunOptions(quiet=True))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        run = ledger.federation()
    for nonce in ("", "../run/config.toml", "0" * 32):
        assert not is_own(msgspec.structs.replace(run, nonce=nonce))
    shutil.rmtree(records_folder())
    assert not is_own(run)


def test_run_that_names_nothing_of_its_account_leaves_no_record(tmp_path: Path, begun: list[Path]) -> None:
    before = set(records_folder().glob("*"))
    assembly.start_run(load_config_text(config_text(rounds=1)), tmp_path / "run", RunOptions(quiet=True))
    assert set(records_folder().glob("*")) == before


def test_resume_signs_nothing_with_keys_for_a_run_that_was_not_begun_here(
    command: Command, tmp_path: Path, begun: list[Path]
) -> None:
    for broker, named in (
        (BrokerConfig(url="mqtts://evil:8883", identity=str(tmp_path / "identity")), "broker.identity = "),
        (BrokerConfig(url="mqtts://evil:8883", tls=TlsFiles(ca="/c", cert="/d", key="/k")), "broker.tls.key = /k"),
    ):
        config = msgspec.structs.replace(load_config_text(config_text(rounds=1)), broker=broker)
        folder = unpacked(tmp_path, config)
        outcome = command("resume", folder, "--json")
        assert outcome.status == 2
        assert named in outcome.error["message"]
        assert "--allow-keys" in outcome.error["message"]
        assert command("resume", folder, "--allow-keys", "--quiet", "--json").status == 0
        shutil.rmtree(folder)
    assert len(begun) == 2


VARIABLES = ["AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "APPORTION_ROOT_PASSPHRASE", "apportion_password"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_run_file_sends_no_variable_of_its_choice_to_a_broker(
    variable: str, command: Command, tmp_path: Path, begun: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "a secret")
    broker = f'url = "mqtts://evil:8883"\nuser = "u"\npassword-env = "{variable}"'
    (tmp_path / "run.toml").write_text(config_text(rounds=1, broker=broker))
    outcome = command("run", tmp_path / "run.toml", "--run-dir", tmp_path / "run", "--json")
    assert outcome.status == 2
    message = outcome.error["message"]
    assert f"$.broker.password-env: {variable} would be sent to the broker at mqtts://evil:8883" in message
    assert f"--allow-env {variable}" in message
    assert not (tmp_path / "run").exists()
    folder = unpacked(tmp_path, load_config_text((tmp_path / "run.toml").read_text()))
    assert command("resume", folder, "--allow-env", "ANOTHER", "--json").status == 2
    assert begun == []
    assert command("resume", folder, "--allow-env", variable, "--quiet", "--json").status == 0
    asked = ("run", tmp_path / "run.toml", "--run-dir", tmp_path / "run", "--quiet", "--json")
    assert command(*asked, "--allow-env", variable).status == 0
    assert command("resume", tmp_path / "run", "--quiet", "--json").status == 0  # it was begun here
    assert len(begun) == 3


@pytest.mark.slow
def test_doctor_sends_no_variable_either(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "a secret")
    broker = 'url = "mqtts://evil:8883"\nuser = "u"\npassword-env = "PGPASSWORD"'
    (tmp_path / "run.toml").write_text(config_text(rounds=1, broker=broker))
    outcome = command("doctor", tmp_path / "run.toml", "--json")
    assert outcome.status == 2
    assert "--allow-env PGPASSWORD" in json.dumps(outcome.line)


def test_variable_for_brokers_is_read_without_being_asked(command: Command, tmp_path: Path, begun: list[Path]) -> None:
    broker = 'url = "mqtts://broker:8883"\nuser = "u"\npassword-env = "APPORTION_LAB_PASSWORD"'
    (tmp_path / "run.toml").write_text(config_text(rounds=1, broker=broker))
    assert command("run", tmp_path / "run.toml", "--run-dir", tmp_path / "run", "--quiet", "--json").status == 0
    assert begun == [tmp_path / "run"]


def test_join_asks_for_what_a_ledger_of_somebody_else_names(
    command: Command, tmp_path: Path, postgres_server: PostgresServer, begun: list[Path]
) -> None:
    place = postgres_server.new_database()
    broker = BrokerConfig(url="mqtts://evil:8883", user="u", password_env="HOME")
    config = msgspec.structs.replace(load_config_text(config_text(rounds=1)), broker=broker)
    store = msgspec.structs.replace(config.store, ledger=place, dir=str(tmp_path / "blobs"))
    config = msgspec.structs.replace(config, store=store)
    Ledger.create(place, federation="small", config=canonical_toml(config), seed=1).close()
    joined = ("join", place, "--federation", "small", "--run-dir", tmp_path / "second", "--quiet", "--json")
    outcome = command(*joined)
    assert outcome.status == 2
    assert "--allow-env HOME" in outcome.error["message"]
    assert begun == []
    assert command(*joined, "--allow-env", "HOME").status == 0


@pytest.mark.parametrize("option", ["hostaddr=203.0.113.9", "passfile=notes", "service=other"])
def test_ledgers_address_does_not_choose_whose_password_it_gets(option: str) -> None:
    text = f'{config_text()}\n[store]\nledger = "postgresql://me@db.example/x?{option}"\n'
    with pytest.raises(ConfigError, match=rf"\$\.store\.ledger: '{option.partition('=')[0]}' says where a password"):
        load_config_text(text)


@pytest.mark.slow
def test_verify_runs_no_code_of_a_manifest(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    assert command("export", "--model", "mlp", "--batch", 4, "--out", folder).status == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["build"] |= {"model": HOSTILE, "options": {"cmd": f"touch {tmp_path}/ran"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    outcome = command("verify", folder, "--json")
    assert outcome.status == 2
    assert f"names code to run, {HOSTILE}" in outcome.error["message"]
    assert not (tmp_path / "ran").exists()
    assert command("verify", folder, "--allow-code", "--json").status != 0  # text is no module
    assert (tmp_path / "ran").exists()
