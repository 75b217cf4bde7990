"""LEAPP folders, as Isaac Lab exports policies: a YAML with names, kinds and wiring, and an ONNX graph a node."""
