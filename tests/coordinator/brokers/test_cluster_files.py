"""The folders of a RabbitMQ cluster: what is in them, for whose eyes, and what is refused."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from cryptography import x509

from coordinator.brokers.broker_files import coordinator_files, local_device_files
from coordinator.brokers.cluster_files import name_hash, topic_expressions, write_cluster_folders
from coordinator.brokers.nodes import Node, parse_nodes
from coordinator.fleet.revocation import lets_in, revoke_device, shuts_out, tell_broker
from coordinator.identity.authority import Authority
from edge.__main__ import main
from edge.contracts.errors import ConfigError, IdentityRefused

HOSTS = ("mq1.local", "mq2.local", "mq3.local")
NODES = parse_nodes(HOSTS)


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    folder = tmp_path / "identity"
    with Authority.create(folder) as authority:
        authority.issue_server(["mq1.local", "mq2.local"])
        authority.issue_server(["mq3.local"])
    coordinator_files(folder, "fed", issue=True)
    for name in ("pi-1", "pi-2"):
        local_device_files(folder, name)
    with Authority(folder) as authority:
        authority.revoke("pi-2")
    return folder


def test_every_node_has_a_folder_with_its_own_certificate_and_the_cluster_in_common(
    identity: Path, tmp_path: Path
) -> None:
    made = write_cluster_folders(identity, tmp_path / "out", NODES, at=PurePosixPath("/etc/rabbitmq"))
    assert made.url == "mqtts://mq1.local:8883,mq2.local:8883,mq3.local:8883"
    assert [path.name for path in made.folders] == [f"rabbit@{host}" for host in HOSTS]
    first, second, third = made.folders
    assert (first / "server.pem").read_bytes() == (second / "server.pem").read_bytes()
    assert (third / "server.pem").read_bytes() == (identity / "server" / "mq3.local.pem").read_bytes()
    for name in ("erlang.cookie", "definitions.json", "ca.pem", "apply", "revoked", "advanced.config"):
        assert len({(folder / name).read_bytes() for folder in made.folders}) == 1, name
    for number, folder in enumerate(made.folders, 1):
        config = (folder / "rabbitmq.conf").read_text()
        assert re.findall(r"^cluster_formation\.classic_config\.nodes\.\d = (.+)$", config, re.MULTILINE) == [
            "rabbit@mq1.local",
            "rabbit@mq2.local",
            "rabbit@mq3.local",
        ]
        assert f"NODENAME=rabbit@mq{number}.local\nUSE_LONGNAME=true\n" in (folder / "rabbitmq-env.conf").read_text()
        assert {"listeners.tcp = none", "mqtt.listeners.tcp = none", "anonymous_login_user = none"} < set(
            config.splitlines()
        )


def test_secrets_are_for_their_owner_alone_and_on_no_stdout(
    identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ca", "rabbitmq", "--out", str(tmp_path / "out"), "--dir", str(identity)]
    assert main([*words, *(f"--node={host}" for host in HOSTS), "--json"]) == 0
    shown = capsys.readouterr()
    folders = [Path(path) for path in json.loads(shown.out)["folders"]]
    for folder in folders:
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert {modes[name] for name in ("erlang.cookie", "server.key", "definitions.json")} == {0o600}
        assert modes["apply"] == 0o755
        assert (folder / "erlang.cookie").read_text() not in shown.out + shown.err
    users = json.loads((folders[0] / "definitions.json").read_text())["users"]
    assert [user["name"] for user in users] == ["@fed", "@fed@fleet", "pi-1"]
    assert {user["password_hash"] for user in users} == {""}
    assert (folders[0] / "revoked").read_text() == "pi-2\n"


def test_cookie_is_kept_when_written_again_and_other_clusters_have_another(identity: Path, tmp_path: Path) -> None:
    cookies = [
        (write_cluster_folders(identity, tmp_path / name, NODES).folders[0] / "erlang.cookie").read_bytes()
        for name in ("a", "a", "b")
    ]
    assert cookies[0] == cookies[1] != cookies[2]
    assert len(cookies[0]) == 64


def test_list_is_under_the_name_that_openssl_looks_for(tmp_path: Path) -> None:
    for index, name in enumerate(("Apportion", "  A  b Ünï", "a, b=c/d+e", "x" * 50)):
        folder = tmp_path / str(index)
        Authority.create(folder, name=name).close()
        wanted = subprocess.run(
            ["openssl", "x509", "-noout", "-subject_hash", "-in", str(folder / "ca.pem")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert name_hash(x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()).subject) == wanted


@pytest.mark.parametrize("name", ["pi.1", "@a.b"])
def test_dot_in_a_name_is_refused_and_nothing_is_written(identity: Path, tmp_path: Path, name: str) -> None:
    if name.startswith("@"):
        coordinator_files(identity, name[1:], issue=True)
    else:
        local_device_files(identity, name)
    with pytest.raises(IdentityRefused, match=rf"delivers '\.' in a topic as '/', so '{re.escape(name)}'"):
        write_cluster_folders(identity, tmp_path / "out", NODES)
    assert not (tmp_path / "out").exists()


def test_host_without_a_certificate_is_refused(identity: Path, tmp_path: Path) -> None:
    with pytest.raises(IdentityRefused, match=r"server 'mq4\.local'") as error:
        write_cluster_folders(identity, tmp_path / "out", [*NODES, Node("mq4.local")])
    assert error.value.hint.startswith("apportion ca issue-server --name mq4.local")


def test_nodes_are_read_with_their_names_and_ports() -> None:
    first, second = parse_nodes(["a@localhost:1883", "b@localhost"])
    assert (str(first), first.port, first.distribution_port) == ("a@localhost", 1883, 25672)
    assert (str(second), second.port, second.distribution_port) == ("b@localhost", 8883, 25673)
    with pytest.raises(ConfigError) as error:
        parse_nodes(["A@host", "host:0", "h st", "x", "x"])
    assert [line.split(":")[0] for line in error.value.problems] == [
        "--node 'A@host'",
        "--node 'host",
        "--node 'h st'",
        "--node",
    ]
    with pytest.raises(ConfigError, match="a cluster has nodes"):
        parse_nodes([])


@pytest.mark.parametrize(
    ("user", "action", "key", "is_allowed"),
    [
        ("pi-1", "write", "apportion.v1.fed.up.pi-1.hello", True),
        ("pi-1", "write", "apportion.v1.fed.up.pi-10.hello", False),
        ("pi-1", "write", "apportion.v1.fed.up.pi-1.a.b", False),
        ("pi-1", "write", "apportion.v1.a.b.up.pi-1.hello", False),
        ("pi-1", "write", "apportion.v1.fed.dn.pi-1.order", False),
        ("pi-1", "read", "apportion.v1.fed.dn.pi-1.#", True),
        ("pi-1", "read", "apportion.v1.fed.all.#", True),
        ("pi-1", "read", "apportion.v1.fed.dn.*.order", False),
        ("pi-1", "read", "apportion.v1.#", False),
        ("pi-1", "read", "apportion.v1.#.dn.pi-1.x", False),
        ("@fed", "read", "apportion.v1.fed.up.#", True),
        ("@fed", "read", "apportion.v1.fed2.up.#", False),
        ("@fed", "write", "apportion.v1.fed.dn.pi-1.order", True),
        ("@fed@fleet", "write", "apportion.v1.fed.all.hello", True),
        ("@fed", "write", "apportion.v1.fed.up.pi-1.hello", False),
    ],
)
def test_expressions_allow_what_mosquittos_access_file_does(user: str, action: str, key: str, is_allowed: bool) -> None:
    assert bool(re.search(topic_expressions(user)[action], key)) == is_allowed


def test_revocation_reaches_a_clusters_folders_and_says_what_is_left_to_do(identity: Path, tmp_path: Path) -> None:
    out = tmp_path / "cluster"
    made = write_cluster_folders(identity, out, NODES, at=PurePosixPath("/etc/rabbitmq"))
    untouched = [(folder / name).read_bytes() for folder in made.folders for name in ("erlang.cookie", "rabbitmq.conf")]
    before = (made.folders[0] / "definitions.json").read_bytes()
    assert revoke_device(identity, "pi-1", reason="lost")
    news = tell_broker(identity, out)
    assert (news.folder, news.pid) == (out, None)
    assert news.commands[0] == f"scp -pr {out}/rabbit@mq1.local mq1.local:"
    put = "sudo cp -rT rabbit@mq1.local /etc/rabbitmq && sudo chown -R rabbitmq: /etc/rabbitmq"
    assert news.commands[1] == f"ssh mq1.local '{put} && rm -r rabbit@mq1.local'"
    assert news.commands[-1] == "ssh mq1.local 'sudo /etc/rabbitmq/apply'"
    assert len(news.commands) == 7
    for folder in made.folders:
        users = [user["name"] for user in json.loads((folder / "definitions.json").read_bytes())["users"]]
        assert "pi-1" not in users
        assert "@fed" in users
        assert (folder / "revoked").read_text() == "pi-1\npi-2\n"
        (found,) = (folder / "crl").glob("*.r0")
        assert len(x509.load_pem_x509_crl(found.read_bytes())) == 2
        assert (folder / "definitions.json").stat().st_mode & 0o777 == 0o600
    assert (made.folders[0] / "definitions.json").read_bytes() != before
    now = [(folder / name).read_bytes() for folder in made.folders for name in ("erlang.cookie", "rabbitmq.conf")]
    assert now == untouched
    assert (lets_in(out, "@fed@fleet"), lets_in(out, "@other")) == (True, False)
    assert (shuts_out(out, "pi-1"), shuts_out(out, "@fed")) == (True, False)


def test_cluster_that_reads_its_folders_where_they_are_needs_one_command(identity: Path, tmp_path: Path) -> None:
    made = write_cluster_folders(identity, tmp_path / "cluster", NODES[:1])
    assert tell_broker(identity, tmp_path / "cluster").commands == (f"sudo {made.folders[0]}/apply",)


def test_cluster_of_another_identity_is_not_written(identity: Path, tmp_path: Path) -> None:
    made = write_cluster_folders(identity, tmp_path / "cluster", NODES)
    Authority.create(tmp_path / "other").close()
    before = (made.folders[0] / "definitions.json").read_bytes()
    with pytest.raises(IdentityRefused, match="the cluster of another identity"):
        tell_broker(tmp_path / "other", tmp_path / "cluster")
    assert (made.folders[0] / "definitions.json").read_bytes() == before


def test_list_verb_brings_brokers_folders_up_to_date_for_a_timer(
    identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cluster"
    (folder,) = write_cluster_folders(identity, out, NODES[:1]).folders
    (path,) = (folder / "crl").glob("*.r0")
    before = x509.load_pem_x509_crl(path.read_bytes())
    assert main(["ca", "crl", "--days", "60", "--broker-folder", str(out), "--dir", str(identity), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    after = x509.load_pem_x509_crl(path.read_bytes())
    assert before.next_update_utc is not None
    assert after.next_update_utc is not None
    assert (after.next_update_utc - before.next_update_utc).days >= 29
    assert line["next_update"] == f"{after.next_update_utc:%Y-%m-%dT%H:%M:%SZ}"
    assert line["due"] == f"{after.next_update_utc - datetime.timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}"
    assert line["brokers"] == [{"folder": str(out), "pid": None, "commands": [f"sudo {folder}/apply"]}]
