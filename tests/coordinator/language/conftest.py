"""What tests of language models' files share: models in the classes of ``transformers``."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.coordinator.language.public_models import PublicModels


@pytest.fixture(scope="session")
def public() -> PublicModels:
    """Tiny public models; skips where ``transformers`` is not installed."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'apportion[models]'")
    return PublicModels()
