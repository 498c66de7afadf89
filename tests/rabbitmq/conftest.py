"""Opt-in: ``make test-rabbitmq``, or APPORTION_TEST_RABBITMQ=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rabbitmq.userland import Unavailable, prepare

SWITCH = "APPORTION_TEST_RABBITMQ"


@pytest.fixture(scope="session")
def rabbitmq_root() -> Path:
    if not os.environ.get(SWITCH):
        pytest.skip(f"{SWITCH} is not set; make test-rabbitmq sets it")
    try:
        return prepare()
    except Unavailable as error:
        pytest.skip(str(error))
