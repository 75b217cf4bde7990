"""``quarl export-torch``: run ``export_torch.py`` with a Python that has PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from quarl import cli
from quarl.convert.importers.chain import ForeignError

SCRIPT = Path(__file__).with_name("export_torch.py")
HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@Parameter(name="*")
@dataclass
class ExportTorchOptions:
    """Export a PyTorch policy.

    Attributes:
        words: FILE or package.module:Class, and its options; `--python PYTHON -- --help` lists them
        python: with PyTorch and numpy (default: the one that runs quarl)
        print: print the script, to run it where PyTorch is
    """

    words: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = ()
    _: KW_ONLY
    python: Annotated[str, Parameter(show_default=False)] = sys.executable
    print: bool = False


@cli.verb(left="nothing was written.")
def run(options: ExportTorchOptions) -> int:
    """Write ONNX, golden pairs and the command that imports both, of TorchScript, a module or a checkpoint.

    quarl export-torch policy.pt --python ~/isaac/bin/python
    quarl export-torch package.module:Class --weights state_dict.pth --output-path walk
    quarl export-torch --print > export_torch.py
    """
    if options.print:
        print(SCRIPT.read_text(encoding="utf-8"), end="")
        return cli.EXIT_OK
    try:
        lacks_torch = subprocess.run([options.python, "-c", HAS_TORCH], capture_output=True).returncode
    except OSError as error:
        raise ForeignError(f"{options.python} cannot run ({error.strerror}).", "Type: --python PYTHON") from None
    if lacks_torch:
        raise ForeignError(
            f"{options.python} has no PyTorch.",
            "Type --python PYTHON that has it, or: quarl export-torch --print > export_torch.py, and run that.",
        )
    return subprocess.run([options.python, str(SCRIPT), *options.words]).returncode
