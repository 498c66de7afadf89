"""Training steps as plain ONNX graphs for stock ONNX Runtime: standard operators, no weights inside."""
