"""Ctrl-C at moments where something else would come of it: it is told as what it is, each time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.policy.interruption import interruption_in

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "-m convert", "-m device.deploy", "-m device.virtual_pi", "-m train", "-m train.list", "-m train.evaluate",
    "-m bench.study", "-m bench.page", "-m airlearning_envs.record", "bench/latency.py",
)  # fmt: skip
COMMAND = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
from quarl.policy import interruption
press = lambda: os.kill(os.getpid(), signal.SIGINT)
interruption.CLEANUP_S = {cleanup_s}
interruption.loading()
try:
    with interruption.interruptible():
        {work}
    print("went on")
except KeyboardInterrupt:
    {handler}
    sys.exit(interruption.EXIT_INTERRUPTED)
"""
TOLD = 'print("told", file=sys.stderr)'
TRANSLATED = """
        try:
            press(); time.sleep(60)
        except BaseException:
            raise OSError("the network is gone") from None"""
SWALLOWED = """
        try:
            press(); time.sleep(60)
        except BaseException:
            pass"""
IN_A_FINALISER = """
        class Closed:
            def __del__(self):
                press(); time.sleep(0.1)
        closed = Closed()
        del closed
        time.sleep(60)"""
CLEANING_UP = """
        try:
            press(); time.sleep(60)
        finally:
            press(); time.sleep(60)"""

STUCK = """
        try:
            press(); time.sleep(60)
        finally:
            kept = threading.Lock()
            kept.acquire(); kept.acquire()"""


def run(work: str, handler: str = TOLD, cleanup_s: float = 30.0) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(work=work, handler=handler, cleanup_s=cleanup_s)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("work", [TRANSLATED, SWALLOWED, IN_A_FINALISER], ids=["translated", "swallowed", "finaliser"])
def test_whatever_a_library_makes_of_it(work: str) -> None:
    assert run(work) == (130, "", "told\n")


def test_pressed_again_while_cleaning_up_ends_at_once() -> None:
    assert run(CLEANING_UP) == (130, "", "interrupted again: ended at once; what had been finished is kept.\n")


def test_cleaning_up_that_waits_for_ever_is_left() -> None:
    printed = "interrupted; cleaning up did not end, so it was left; what had been finished is kept.\n"
    assert run(STUCK, cleanup_s=0.2) == (130, "", printed)


def test_pressed_again_while_it_is_told_ends_at_once() -> None:
    status, out, printed = run("press(); time.sleep(60)", handler="press(); time.sleep(60)")
    assert (status, out, printed) == (130, "", "interrupted again: ended at once; what had been finished is kept.\n")


def test_an_error_of_its_own_stays_what_it_is() -> None:
    status, _, printed = run("raise OSError('the disk is gone')")
    assert status == 1 and printed.endswith("OSError: the disk is gone\n")


def test_the_interruption_in_whose_handling_an_error_was_raised() -> None:
    def closing() -> None:
        try:
            raise KeyboardInterrupt("pressed")
        finally:
            raise EOFError

    def translating() -> None:
        try:
            closing()
        except EOFError:
            raise OSError("lost") from None

    with pytest.raises(OSError, match="lost") as raised:
        translating()
    found = interruption_in(raised.value)
    assert found is not None and found.args == ("pressed",)
    assert interruption_in(OSError()) is None and interruption_in(None) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_pressed_before_python_has_started(command: str) -> None:
    """make starts commands with the signal blocked, so it waits until the command can tell it."""
    with subprocess.Popen(
        [sys.executable, *command.split(), "--help"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_blocked,
    ) as process:  # fmt: skip
        process.send_signal(signal.SIGINT)
        out, printed = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert printed == "interrupted while it was loading; nothing was written.\n"


def _blocked() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@pytest.mark.parametrize(
    "line", ["echo begun; sleep 600", "echo begun; while :; do :; done"], ids=["command", "between"]
)
def test_a_recipe_has_the_last_word(line: str) -> None:
    with subprocess.Popen(
        ["setup/recipe.sh", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        printed = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert printed == "Interrupted. Type the same command again: what was finished is kept.\n"
