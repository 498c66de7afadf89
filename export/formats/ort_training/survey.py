"""Every layer that ONNX Runtime Training cannot run, or runs and does not differentiate; asks no runtime."""

from __future__ import annotations

from export.formats.onnx_step.survey import REFUSED, survey_translation
from export.formats.onnx_step.translation import Translation
from export.formats.ort_training.differentiable import missing_gradients
from export.formats.ort_training.forward import capture_forward
from export.formats.ort_training.operators import ForwardTranslation
from export.formats.survey import CapturedStep, Survey
from export.training_step import StepSpec


def survey_step(step: CapturedStep, spec: StepSpec) -> Survey:
    """What would be refused of the step's programs.

    Raises:
        ExportRefused: the step as a whole is refused.
    """
    survey = Survey()
    variants = {variant.program: variant for variant in spec.variants}
    for name in ("train", *variants):
        forward = capture_forward(step.functions[name], spec, variants.get(name))
        translation = ForwardTranslation(forward)
        results = survey_translation(translation, survey)
        trained = [item.name for item in forward.inputs if item.role == "parameter"]
        for error in missing_gradients(translation.make.nodes, results[0], trained, known={REFUSED}):
            survey.refuse(error, is_gradient=True)
    for name, program in step.programs.items():
        if name != "train" and name not in variants:
            survey_translation(Translation(program), survey)
    return survey
