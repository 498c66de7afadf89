"""``[broker] web`` and runtimes of browsers in a run file: what goes together, and how it reads back."""

from __future__ import annotations

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.cohort import LocalGroup
from tests.coordinator.run_file.test_loading import SMALL, parse, problems

STARTED = '[broker]\nurl = "mosquitto"\nidentity = "id"\n'
EXTERNAL = '[broker]\nurl = "mqtts://hub:8883"\nidentity = "id"\n'


@pytest.mark.parametrize(
    "table",
    [
        STARTED + 'web = "https://hub.lan:8443"\n',
        STARTED + 'web = "http://127.0.0.1:8080"\n',
        '[broker]\nurl = "embedded"\nidentity = "id"\nweb = "http://localhost:8080"\n',
        EXTERNAL + 'web = "https://hub:8443"\nweb-socket = "wss://hub:8884/mqtt"\nfolder = "broker"\n',
        EXTERNAL + 'web = "https://[fd00::1]:8443"\nweb-socket = "wss://[fd00::1]:8884"\n',
    ],
)
def test_page_with_a_broker_that_browsers_reach_is_kept_in_the_runs_file(table: str) -> None:
    config = parse(SMALL + table)
    assert config.broker.web
    again = parse(canonical_toml(config))
    assert again == config


def test_certificate_of_the_page_counts_from_the_run_file() -> None:
    table = STARTED + 'web = "https://hub.lan:8443"\nweb-certificate = "tls/chain.pem"\nweb-key = "/etc/key.pem"\n'
    config = parse(SMALL + table)
    assert (config.broker.web_certificate, config.broker.web_key) == ("/somewhere/tls/chain.pem", "/etc/key.pem")
    text = canonical_toml(config)
    assert 'web-certificate = "/somewhere/tls/chain.pem"' in text
    assert parse(text) == config


def test_run_file_without_a_page_does_not_mention_it() -> None:
    assert "web" not in canonical_toml(parse(SMALL))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('[broker]\nweb = "https://x:1"', "$.broker.web: browsers join with tokens of an identity; give identity"),
        (STARTED + 'web = "http://hub.lan:8080"', "$.broker.web: 'http://hub.lan:8080' is not https://host:port"),
        (STARTED + 'web = "https://hub"', "$.broker.web: 'https://hub' is not https://host:port"),
        (STARTED + 'web = "https://h:1/x; script-src *"', "is not https://host:port"),
        (STARTED + 'web = "https://h:1"\nbulk = "https://h:1"', "$.broker.web: 'https://h:1' is the address of bulk"),
        (STARTED + 'web = "https://h:1"\nweb-socket = "wss://h:2"', "$.broker.web-socket: the mosquitto broker that"),
        (
            STARTED + 'web = "https://h:1"\nfolder = "f"',
            "$.broker.folder: the mosquitto broker that",
        ),
        (STARTED + 'folder = "f"', "$.broker.folder: is where browsers are made known, and there is no page"),
        (STARTED + 'web-socket = "wss://h:2"', "$.broker.web-socket: is for browsers, and there is no page"),
        (EXTERNAL + 'web = "https://h:1"', "$.broker.web-socket: is missing; browsers cannot use mqtts://hub:8883"),
        (EXTERNAL + 'web = "https://h:1"\nweb-socket = "wss://h:2; x"', "$.broker.web-socket: 'wss://h:2; x' is not"),
        (EXTERNAL + 'web = "https://h:1"\nweb-socket = "ws://localhost:2"', "must not speak to 'ws://localhost:2'"),
        ('[broker]\nidentity = "id"', "$.broker.identity: certificates are for"),
        (
            STARTED + 'web = "https://h:1"\nweb-key = "k"',
            "$.broker.web-certificate: web-certificate and web-key belong",
        ),
        (
            STARTED + 'web = "https://h:1"\nweb-certificate = "c"',
            "$.broker.web-certificate: web-certificate and web-key",
        ),
        (
            STARTED + 'web = "http://localhost:1"\nweb-certificate = "c"\nweb-key = "k"',
            "$.broker.web-certificate: is for a page over TLS",
        ),
        (STARTED + 'web-certificate = "c"\nweb-key = "k"', "$.broker.web-certificate: is for a page over TLS"),
    ],
)
def test_what_does_not_go_together_is_told_with_the_next_step(table: str, expected: str) -> None:
    found = problems(SMALL + table)
    assert any(expected in problem for problem in found), found


def test_several_mistakes_about_the_page_are_told_at_once() -> None:
    found = problems(SMALL + '[broker]\nurl = "mqtts://h:1"\nweb = "http://hub:1"\n')
    assert [problem.split(":")[0] for problem in found] == ["$.broker.web", "$.broker.web", "$.broker.web-socket"]


def test_runtime_of_browsers_is_allowed_and_never_one_of_an_agent_started_here() -> None:
    text = SMALL + '[runtime]\nname = ["onnxruntime_web", "onnxruntime"]\n'
    assert parse(text).runtime.names == ("onnxruntime_web", "onnxruntime")
    with_local = parse(text + "[[cohort.local]]\ncount = 1\n")
    assert with_local.runtime.of_group(with_local.cohort.local[0]) == "onnxruntime"
    assert with_local.runtime.of_group(LocalGroup(count=1)) == "onnxruntime"


@pytest.mark.parametrize(
    ("names", "group", "told"),
    [
        ('["onnxruntime_web"]', "count = 1", "'onnxruntime_web' is for agents of other kinds"),
        (
            '["onnxruntime", "onnxruntime_web"]',
            'count = 1\nruntime = "onnxruntime_web"',
            "those started here",
        ),
    ],
)
def test_agent_started_here_that_had_to_be_a_browser_is_refused(names: str, group: str, told: str) -> None:
    (problem,) = problems(SMALL + f"[runtime]\nname = {names}\n[[cohort.local]]\n{group}\n")
    assert problem.startswith("$.cohort.local[0].runtime: ")
    assert told in problem
