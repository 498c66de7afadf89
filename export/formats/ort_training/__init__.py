"""Training artifacts for ONNX Runtime Training 1.19.2.

``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint``, as its APIs load them.

The forward pass is traced and translated as for stock ONNX Runtime, with operators its gradient builder knows
(:mod:`.operators`); the builder itself, which no other release has, runs in a child process in the runtime's own
environment (:mod:`.child`), where neither torch nor onnx is installed.

What that release needs to be worked around, and where it is (each found by measurement):

1. ``import onnxruntime.training`` imports torch: :mod:`edge.runtimes.onnxruntime_training`.
2. Training-mode batch norm, layer norm and the loss must have their optional outputs, and an exporter may fold batch
   norm into convolutions: the graph is our own translation, :mod:`.operators`, with nothing folded.
3. It loads no model of IR version above 10, and its builders write whatever the onnx package beside them writes:
   :mod:`.training_model`, :mod:`.optimizer_model` (IR version 9, the opsets that are used).
4. An evaluation model made from the training one does not load with batch norm: :mod:`.format` traces evaluation for
   itself.
5. Running statistics are never updated: they are outputs of the training model (:mod:`.operators`), written back by
   :mod:`edge.runtimes.onnxruntime_training`.
6. Its SGD has no momentum and no decay; no optimizer's state can be read or set: the rule is applied to the gradients
   where they lie, :mod:`edge.runtimes.host_update`.
7. Parameters are listed in alphabetical order and lie in buffers in another one: they are only ever asked for by name,
   :mod:`edge.runtimes.onnxruntime_training`.
8. The loss is part of the traced forward pass, and the gradients are read from the parameters after a step:
   :mod:`.forward`, :mod:`edge.runtimes.onnxruntime_training`.
"""
