"""Bundle to artifacts: TFLite and ONNX graphs with the normaliser and the action head inside, each one verified."""
