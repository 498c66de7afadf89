"""The same checks over every registered method: a new file in ``coordinator/methods`` is tested without an edit."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.conformance.findings import NotApplicable
from coordinator.conformance.methods import CHECKS
from coordinator.conformance.methods.session import check_named
from coordinator.conformance.methods.subject import Net, Subject, Transformer, seeded
from coordinator.methods import METHODS, method_class
from edge.contracts.tensor_file import encode_tensors

BLOCKS_ONLY = ("adapter", "prefix", "prompt")
"""Methods to which convolutions give no place."""


def needed_options(name: str) -> dict[str, Any]:
    """Options without which a method has nothing to go on."""
    if name == "slt":
        return {"levels": [0.5], "steps": [0.4, 0.6, 1], "rounds": 8}  # so small a network is all parameters
    if name == "synflow":
        return {"passes": 3}
    if name == "sparse_update":
        paths = [path for path, part in Net().named_modules() if hasattr(part, "weight") and part.weight.dim() > 1]
        return {"levels": [1, 0.9, 0.6], "contributions": {p: i + 1.0 for i, p in enumerate(paths)}}
    if name in ("feddf", "ds_fl", "fed_et"):
        return {"proxy": "tests.federation.proxy_images:build", "proxy-examples": 24, "distillation-steps": 3}
    if name == "lottery_ticket":
        path = Path(tempfile.gettempdir()) / f"apportion-ticket-{os.getpid()}.safetensors"
        generator = np.random.default_rng(0)
        state = {n: v.numpy() * (generator.random(tuple(v.shape)) < 0.5) for n, v in Net().state_dict().items()}
        path.write_bytes(encode_tensors({n: v.astype(np.float32) for n, v in state.items()}))
        return {"mask-file": str(path)}
    return {}


def subject(name: str) -> Subject:
    network = Transformer if name in BLOCKS_ONLY else Net
    return Subject(name, method_class(name), seeded(network), needed_options(name))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.partition(":")[2])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_method_holds(name: str, check: str) -> None:
    reason = method_class(name).synchronous_only if check.startswith("later_models:") else ""
    if reason:
        with pytest.raises(NotApplicable, match=re.escape(reason)):
            check_named(check)(subject(name))
    else:
        assert check_named(check)(subject(name))
