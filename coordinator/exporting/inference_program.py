"""The program that a deployed model is made from."""

from __future__ import annotations

from dataclasses import replace

from coordinator.submodels.values import DeviceProgram, Submodel


def inference_program(submodel: Submodel, norm: str) -> DeviceProgram:
    """The device program of ``submodel`` for inference.

    Trained on batch statistics and evaluated with those gathered at the end, it is deployed with them, too.

    Args:
        norm: statistics of the run's evaluation, ``$.evaluation.norm``.
    """
    if submodel.program.norm == "batch" and norm != "batch":
        return replace(submodel.program, norm="running")
    return submodel.program
