"""What must be known of a runtime where its package is not; each runtime's folder says it of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RuntimeTraits:
    """One runtime, a browser's included.

    Attributes:
        format: the exporter's format that writes for it, as registered in ``export/formats``.
        install: how this machine gets it; empty where it comes with a page.
        distribution: the package it comes in, by its name in an index, and ``module``, by which it is imported.
        has_wheels: its trainers can be installed on hosts of every processor in use.
        native_build: module that compiles what its package lacks, a :class:`edge.runtimes.base.NativeBuild`.
        native_trainer: module that finds a trainer without Python for it, a
            :class:`edge.runtimes.base.NativeTrainers`; empty: there is none.
        usual_idle_bytes: what its Python trainer weighs before data and order, for a device where none has run yet;
            0: there always has one.
        agent_bytes: what an agent, supervisor and trainer, weighs before any step, for devices that are imagined;
            measured on x86-64.
        is_in_browser: a page brings it; it sends what it trained as it is.
        checked_by: the runtime that runs the same graphs here, where it does not run itself: artifacts are checked with
            it, and never trained.
        max_threads: most threads a step of it uses; 0: as many as ordered.
        inference: what its inference models are called by, their files' suffix; empty: it has none here.
        language_format: the format that writes language models for it; empty: it trains none, and ``why_no_language``
            says why.
        unmeasured_threads: threads of a step where no step times of a device are known.
    """

    format: str = ""
    install: str = ""
    distribution: str = ""
    module: str = ""
    has_wheels: bool = False
    native_build: str = ""
    native_trainer: str = ""
    usual_idle_bytes: int = 0
    agent_bytes: int = 75 << 20
    is_in_browser: bool = False
    checked_by: str = ""
    max_threads: int = 0
    unmeasured_threads: int = 1
    inference: str = ""
    language_format: str = ""
    why_no_language: str = "it maps no base"
