"""Ctrl-C at random moments of make deploy, make bench and make demo, while every core is busy.

    python -m tests.first_hour.random_moments --times 60

A line for each: the command, the moment, the exit status, and what was said last. Every one has to be told as an
interruption, and nothing may be lost; the exit status is 1 where one was not. A command that ended before its moment
does not count, and its moments come earlier from then on. It takes some twenty minutes: no test.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.first_hour.conftest import PATIENCE_S, Workshop, checked_out

LATEST_S = {  # what is typed, and the latest moment
    "make deploy POLICY=II": 12.0,
    "make bench POLICY=I": 25.0,
    "make demo DEMO_STEPS=60000 DEMO_RUNS='200 --no-baseline' DEMO_EPISODES=20": 40.0,
}
UNTOLD = ("Traceback", "was lost", "does not start", "Look at the network", "Exception ignored")


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process that computes without end on every core."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def interrupted(workshop: Workshop, command: str, moment_s: float) -> tuple[int, str]:
    """Type a command and press Ctrl-C after some seconds; its exit status, and all it said."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=workshop.folder, env=workshop.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip

    def interrupt() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)

    press = threading.Timer(moment_s, interrupt)
    press.start()
    text = process.communicate(timeout=PATIENCE_S)[0]
    press.cancel()
    return process.returncode, text


def main(argv: list[str] | None = None) -> int:
    """Interrupt, print a line each; 1 where one was not told as such or something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    arguments = parser.parse_args(argv)
    moments, latest_s = random.Random(arguments.seed), dict(LATEST_S)
    reported = wrong = ended_before = 0
    with tempfile.TemporaryDirectory() as folder, busy_cores():
        workshop = checked_out(Path(folder) / "my project")
        while reported + wrong < arguments.times:
            command = list(latest_s)[(reported + wrong + ended_before) % len(latest_s)]
            if "demo" in command or "deploy" in command:
                workshop.typed("rm -rf artifacts")
            moment_s = moments.uniform(0.0, latest_s[command])
            held = workshop.holdings()
            began = time.monotonic()
            status, text = interrupted(workshop, command, moment_s)
            took_s = time.monotonic() - began
            words = [line for line in text.splitlines() if line.strip()]
            # The pictures of results/ are drawn again by whatever gets that far.
            lost = [name for name in workshop.lost_since(held) if not name.startswith("results/") or ".png" not in name]
            if status == 0:
                ended_before += 1
                latest_s[command] = min(latest_s[command], took_s)
                verdict = "ended before"
            elif "nterrupt" not in text or any(each in text for each in UNTOLD) or lost:
                wrong += 1
                verdict = f"WRONG, lost: {lost}\n{text}"
            else:
                reported += 1
                verdict = "told"
            spent = f"{moment_s:5.1f} s, {took_s - moment_s:4.1f} s later"
            print(
                f"{reported + wrong:3} {command[:18]:18} {spent}: {status:4} {' / '.join(words[-3:])[:150]} {verdict}"
            )
            sys.stdout.flush()
    print(f"{reported} told as interruptions, {wrong} not or with a loss; {ended_before} ended before their moment.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
