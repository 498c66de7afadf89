"""The operators' translations: one file per family; :mod:`export.formats.onnx_step.operator_table` has them all."""
