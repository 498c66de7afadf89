"""``[clusters]`` of a run file: layers of which each group of devices has values of its own."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from coordinator.config.table_reader import TableReader
from edge.contracts.errors import MessageRejected
from edge.contracts.topics import check_name


class ClustersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[clusters]``.

    Attributes:
        by: what says which cluster a device is in: ``tag``, the first of ``tags`` that it has. Example: ``"tag"``.
        tags: one cluster each; empty = none. Example: ``["north", "south"]``.
        layers: name patterns of the tensors that each cluster has for itself; the others are one for all. ``*``: a
            whole model for each. Example: ``["head.*"]``.
    """

    by: Literal["tag"] = "tag"
    tags: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    def own(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that each cluster has for itself, in their order."""
        return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in self.layers))

    def cluster(self, tags: Iterable[str]) -> str:
        """The cluster of a device with ``tags``; empty where it is in none."""
        has = set(tags)
        return next((tag for tag in self.tags if tag in has), "")


def read_clusters(table: TableReader) -> ClustersConfig:
    """The table's values."""
    by = table.choice("by", ("tag",), "tag")
    read = ClustersConfig(
        by=by, tags=read_tags(table, "tags"), layers=table.list_of("layers", str, "name patterns", ())
    )
    is_asked = any(table.has(key) for key in ("by", "tags", "layers"))
    if is_asked and len(read.tags) < 2:
        table.problem("tags", "name two tags or more, one for each cluster")
    if is_asked and (not read.layers or not all(read.layers)):
        table.problem("layers", 'name one pattern or more, such as head.*; "*" for a whole model each')
    return read


def read_tags(table: TableReader, key: str) -> tuple[str, ...]:
    """The tags under ``key``, each once."""
    tags = table.list_of(key, str, "tags", ())
    for tag in tags:
        try:
            check_name(tag, what="tag")
        except MessageRejected as error:
            table.problem(key, str(error))
    if len(set(tags)) < len(tags):
        table.problem(key, f"{[*tags]} names one twice; name each once")
    return tags
