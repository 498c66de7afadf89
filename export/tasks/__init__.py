"""Tasks by name: what a step trains a model for. A new one is a file here and a line below.

``[task] name`` in a run file is one of these, ``package.module:Class`` for one's own, or ``module`` for a model that
brings its own ``training_step``. Without it a step is classification by :mod:`export.logits_objective`.
"""

from __future__ import annotations

TASKS = {
    "autoencoder": "export.tasks.autoencoder:Autoencoder",
    "contrastive-pairs": "export.tasks.contrastive_pairs:ContrastivePairs",
    "ctc": "export.tasks.ctc:Ctc",
    "module": "export.tasks.module_steps:ModuleSteps",
    "multi-label": "export.tasks.multi_label:MultiLabel",
    "next-token": "export.tasks.next_token:NextToken",
    "regression": "export.tasks.regression:Regression",
    "segmentation": "export.tasks.segmentation:Segmentation",
    "sequence-tagging": "export.tasks.sequence_tagging:SequenceTagging",
}
"""Name -> class; its options are keyword arguments."""

CLASSIFICATION = "classification"
"""The task of a run that names none."""
