"""Programs that a bench starts: what they print comes back, and whatever ends the waiting ends them in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quarl.bench.study.measures.children import run_to_end

IN_GOOD_ORDER = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("begun")
time.sleep(600)
"""
BENCH = """
import dataclasses, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
from quarl import cli
from quarl.bench.study.measures.children import run_to_end
@dataclasses.dataclass
class Options:
    json: bool = False
@cli.verb()
def wait(options: Options):
    run_to_end([sys.executable, "-c", sys.argv[1], sys.argv[2]])
cli.VERBS["Measuring"]["wait"] = cli.Verb("__main__:wait", "waits")
sys.exit(cli.main(["wait"]))
"""


def test_what_it_prints_and_its_status() -> None:
    program = "import sys; print(sys.stdin.read().upper()); print('no', file=sys.stderr); sys.exit(3)"
    done = run_to_end([sys.executable, "-c", program], "said", environment={**os.environ, "PYTHONUTF8": "1"})
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (3, "SAID", "no")


def test_too_long(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    with pytest.raises(subprocess.TimeoutExpired):
        run_to_end([sys.executable, "-c", IN_GOOD_ORDER, str(sign)], timeout_s=10)
    assert sign.read_text() == "ended"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bench_that_is_ended_ends_what_it_started(number: signal.Signals, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    with subprocess.Popen([sys.executable, "-c", BENCH, IN_GOOD_ORDER, str(sign)], stderr=subprocess.PIPE) as bench:
        until = time.monotonic() + 60
        while not (sign.exists() and sign.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        bench.send_signal(number)
        printed = bench.communicate(timeout=60)[1].decode()
    assert sign.read_text() == "ended"
    assert bench.returncode == 130
    assert "interrupted" in printed
