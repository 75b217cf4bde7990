"""``ensure`` of policy/project_python.py, for scripts of this folder: a Python that lacks policy finds this file."""

import runpy
from pathlib import Path

ensure = runpy.run_path(str(Path(__file__).resolve().parent.parent / "policy" / "project_python.py"))["ensure"]
