"""Names of tensors in files of other packages, as names of the module that is to hold them.

A map has a pattern of the file's names on the left and the module's name on the right; each ``*`` on the right stands
for what the same one on the left stood for. Of several patterns that match a name the one with the most letters counts.
Nothing on the right leaves the tensor out. What no pattern matches keeps its name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 3
WHERE = "$.model.weights-map"


def renamed(names: Iterable[str], patterns: Mapping[str, str], *, whole: bool = True) -> dict[str, str]:
    """Name in the file -> name in the module, without those that are left out.

    Args:
        whole: whether each pattern has to match something.

    Raises:
        ConfigError: a pattern that matches nothing, or two names that become one.
    """
    found: dict[str, str] = {}
    sources: dict[str, str] = {}
    problems, used = [], set()
    ordered = sorted(patterns, key=lambda pattern: (-len(pattern.replace("*", "")), pattern))
    known = list(names)
    for name in known:
        matches = ((pattern, re.fullmatch(_expression(pattern), name)) for pattern in ordered)
        pattern, match = next(((p, m) for p, m in matches if m), ("", None))
        used.add(pattern)
        target = _filled(patterns[pattern], match.groups()) if match else name
        if not target:
            continue
        if target in sources:
            problems.append(f"{WHERE}: '{sources[target]}' and '{name}' both become '{target}'; make the map narrower")
        found[name], sources[target] = target, name
    for pattern in patterns.keys() - used if whole else ():
        near = difflib.get_close_matches(pattern.replace("*", ""), known, n=_SHOWN, cutoff=0.3) or known[:_SHOWN]
        has = ", ".join(near)
        problems.append(
            f"{WHERE}: '{pattern}' matches no name of the file that longer patterns leave; it has {has}, ..."
        )
    if problems:
        raise ConfigError(sorted(problems))
    return found


def pattern_problem(pattern: str, target: str) -> str:
    """What is wrong with a line of a map, empty where nothing is."""
    stars, wanted = pattern.count("*"), target.count("*")
    if target and stars != wanted:
        return f"'{pattern}' has {stars} times * and '{target}' {wanted}; each on the right stands for one on the left"
    return ""


def named_map(name: str, module: nn.Module, build: str) -> dict[str, str]:
    """The map of that name for ``module``, which ``build`` made.

    Raises:
        ConfigError: no such map for this model; lists those there are.
    """
    known = {key: patterns for key, of in MAPS.items() if (patterns := of(module, build))}
    if name not in known:
        have = f"there are {', '.join(sorted(known))}" if known else "there is none"
        raise ConfigError(
            [f"{WHERE}: no map '{name}' of names for {build}; {have}"],
            hint="write one: [model.weights-map] with a pattern of the file's names and the model's name",
        )
    return known[name]


def fitting_maps(names: Iterable[str], held: Iterable[str], module: nn.Module, build: str) -> list[str]:
    """Named maps under which more of the file's ``names`` are those that the module ``held`` than without."""
    known, wanted = list(names), set(held)
    without = len(wanted & set(known))
    fitting = []
    for key, of in MAPS.items():
        try:
            after = renamed(known, of(module, build), whole=False)
        except ConfigError:
            continue
        if len(wanted & set(after.values())) > without:
            fitting.append(key)
    return fitting


def _timm(module: nn.Module, build: str) -> dict[str, str]:
    """Vision transformers of this project, from timm's (``vit_small_patch16_224``, ``deit_tiny_patch16_224``)."""
    if build not in ("vit", "deit_tiny", "vit_small"):
        return {}
    return {
        "cls_token": "token",
        "pos_embed": "position",
        "patch_embed.proj.*": "embed.*",
        "blocks.*.attn.*": "blocks.*.attention.*",
        "blocks.*.mlp.*": "blocks.*.*",
    }


def _torchvision(module: nn.Module, build: str) -> dict[str, str]:
    """This project's MobileNetV3 from torchvision's, which numbers the parts of a block that are there."""
    if build != "mobilenet_v3_small":
        return {}
    blocks = list(module.get_submodule("blocks").children())
    patterns = {"features.0.*": "stem.*", f"features.{len(blocks) + 1}.*": "last.*"}
    patterns |= {"classifier.0.*": "hidden.*", "classifier.3.*": "fc.*"}
    for index, block in enumerate(blocks):
        parts = [n for n, part in block.named_children() if next(part.parameters(), None) is not None]
        for number, part in enumerate(parts):
            patterns[f"features.{index + 1}.block.{number}.*"] = f"blocks.{index}.{part}.*"
    return patterns


def _transformers(module: nn.Module, build: str) -> dict[str, str]:
    """A classifier of transformers from a file of that classifier."""
    return {"*": "network.*"} if build.startswith("transformers:") else {}


def _transformers_base(module: nn.Module, build: str) -> dict[str, str]:
    """A classifier of transformers from a file of its body alone, as ``AutoModel`` writes it."""
    if not build.startswith("transformers:"):
        return {}
    return {"*": f"network.{module.get_submodule('network').base_model_prefix}.*"}


MAPS: dict[str, Callable[[nn.Module, str], dict[str, str]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "transformers-base": _transformers_base,
}
"""Name of a map -> the map for a module and its name; empty for models that need none."""


def _expression(pattern: str) -> str:
    return "(.*)".join(re.escape(part) for part in pattern.split("*"))


def _filled(target: str, groups: tuple[str, ...]) -> str:
    parts = target.split("*")
    return "".join(part + value for part, value in zip(parts, (*groups, ""), strict=True)) if target else ""
