"""paho without what only proxies need, and with it as soon as somebody asks."""

from __future__ import annotations

import subprocess
import sys

from edge.supervisor.trainer_link import child_environment


def printed(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True, check=True
    ).stdout.strip()


def test_transport_is_imported_without_http_and_mail() -> None:
    program = (
        "import sys, edge.transport.mqtt;"
        "print(sorted({'urllib.request', 'http.client', 'email', 'numpy', 'torch'} & set(sys.modules)))"
    )
    assert printed(program) == "[]"


def test_what_was_deferred_is_there_when_paho_or_another_module_asks() -> None:
    program = (
        "import edge.transport.mqtt, paho.mqtt.client as client;"
        "assert client.urllib.request.proxy_bypass is not None;"
        "import urllib.request;"
        "from urllib import request;"
        "assert client.urllib.request is urllib.request is request;"
        "print(urllib.request.__file__.endswith('request.py'))"
    )
    assert printed(program) == "True"


def test_module_that_is_loaded_already_stays_as_it_is() -> None:
    program = "import urllib.request as before, edge.transport.mqtt, urllib.request;print(urllib.request is before)"
    assert printed(program) == "True"
