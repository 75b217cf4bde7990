"""Bundle to artifacts: TFLite and ONNX graphs with the normaliser and the action head inside, each one verified."""

from policy import project_python

if project_python.is_command():  # by whatever Python it was typed: go on with the project's
    project_python.ensure()
