"""Questions asked of a device (how fast, how much memory, how often it succeeds), stored, tabulated and drawn."""

from policy import project_python

if project_python.is_command():  # by whatever Python it was typed: go on with the project's
    project_python.ensure()
