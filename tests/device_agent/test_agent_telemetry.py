"""No runtime leaves traces in the user's folders or talks to its maker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.policy.spec import RuntimeName


@pytest.mark.parametrize("runtime", RuntimeName)
def test_importing_a_runtime_writes_nothing_into_the_home_folder(runtime: RuntimeName, tmp_path: Path) -> None:
    module = "quarl.device.agent.runtimes"
    program = f"from {module} import import_runtime, RuntimeName as R; import_runtime(R('{runtime.value}'))"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []
