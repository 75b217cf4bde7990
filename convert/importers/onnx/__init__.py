"""The reader of foreign ONNX files."""
