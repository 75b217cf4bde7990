"""Mutated bundles, lines and fleet.toml files, as many as asked for; prints how they ended, and what was wrong.

    python -m tests.fuzz --bundles 10000 --lines 100000 --fleet 10000 --seed 0
    python -m tests.fuzz --bundles 1 --first 4711          one of them again

Each worker is a process of its own: what kills or stops it is counted, and the next one goes on behind it. Time and
memory are of one input alone: resident memory above what the worker held before it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HANG_S = 20.0
"""Without a result for so long a worker is stopped; an input alone takes milliseconds."""
FINE = ("refused", "harmless")
KINDS = ("bundles", "lines", "fleet")


@dataclass
class Outcome:
    """How the inputs of a kind ended.

    Attributes:
        counts: by a word.
        wrong: inputs that ended neither refused nor harmless, with what happened.
        longest_s, most_bytes: of one input.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    longest_s: float = 0.0
    most_bytes: int = 0

    def add(self, number: int, word: str, seconds: float, held: int) -> None:
        """One input."""
        self.counts[word.partition(":")[0]] += 1
        if not word.startswith(FINE):
            self.wrong.append((number, word))
        self.longest_s, self.most_bytes = max(self.longest_s, seconds), max(self.most_bytes, held)


def run(kind: str, first: int, count: int, seed: int, base: Path) -> Outcome:
    """Try inputs ``first`` … of a seed in a worker, in another one where that dies or hangs."""
    outcome, end, number = Outcome(), first + count, first
    while number < end:
        words = [sys.executable, "-m", "tests.fuzz", "--worker", kind, "--first", str(number)]
        words += ["--count", str(end - number), "--seed", str(seed), "--base", str(base)]
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as worker,
            selectors.DefaultSelector() as ready,
        ):
            assert worker.stdout is not None
            ready.register(worker.stdout, selectors.EVENT_READ)
            while number < end:
                if not ready.select(HANG_S):
                    worker.kill()
                    outcome.add(number, "hangs", HANG_S, 0)
                    break
                answer = worker.stdout.readline()
                if not answer:
                    log.seek(0)
                    printed = log.read()[-300:].decode(errors="replace")
                    outcome.add(number, f"kills (exit {worker.wait()}): {printed}", 0.0, 0)
                    break
                outcome.add(number, *json.loads(answer))
                number += 1
            else:
                worker.wait()
                return outcome
        number += 1
    return outcome


def work(kind: str, first: int, count: int, seed: int, base: Path) -> None:
    """A worker: a line of JSON for each input, [word, seconds, bytes]."""
    from quarl.device.agent import memory
    from quarl.device.agent.__main__ import take_stdout, write_all

    replies = take_stdout()
    with tempfile.TemporaryDirectory() as folder:
        attempt = {"bundles": _bundles, "lines": _lines, "fleet": _fleet}[kind](base, seed, Path(folder) / "bundle")
        for number in range(first, first + count):
            memory.reset_peak()
            before, began = memory.read().now or 0, time.perf_counter()
            word = attempt(number)
            took, held = time.perf_counter() - began, (memory.read().peak or 0) - before
            write_all(replies, json.dumps([word, took, held]).encode() + b"\n")


Attempt = Callable[[int], str]


def _bundles(base: Path, seed: int, place: Path) -> Attempt:
    import numpy as np

    from quarl.policy.bundle import Bundle
    from tests.fuzz import bundles

    files = bundles.files_of(base)
    observations = Bundle.load(base).calibration()[: bundles.ACTED].astype(np.float32)

    def attempt(number: int) -> str:
        chance = random.Random(f"{seed} {number}")
        bundles.put(place, *bundles.mutated(files, chance))  # a few milliseconds of what is timed
        return bundles.tried(place, observations, chance.choice(["int8", "fp32"]))

    return attempt


def _lines(base: Path, seed: int, place: Path) -> Attempt:
    from quarl.device.agent.server import Agent
    from quarl.policy.bundle import Bundle
    from tests.fuzz import lines

    legal = lines.requests(Bundle.load(base).calibration()[:6].tolist())
    agent = Agent(base)
    assert json.loads(agent.handle(b'{"op": "load", "precision": "int8"}'))["ok"]

    def attempt(number: int) -> str:
        text = lines.line(legal, random.Random(f"{seed} {number}"))
        if lines.is_long(text):
            return "harmless: legal, and long"
        reply = json.loads(agent.handle(text))
        agent.ended = False
        if reply["ok"]:
            return "harmless"
        code = reply["error"]["code"]
        return f"internal: {reply['error']['message'][:200]}" if code == "internal" else f"refused {code}"

    return attempt


def _fleet(base: Path, seed: int, place: Path) -> Attempt:
    from tests.fuzz import fleet

    file = place.with_name("fleet.toml")
    return lambda number: fleet.tried(file, fleet.text(random.Random(f"{seed} {number}")))


def main(argv: Sequence[str] | None = None) -> int:
    """Try them; 1 where one was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--bundles", type=int, default=0)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--fleet", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, help="the bundle that is mutated, converted to int8 and fp32")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        work(arguments.worker, arguments.first, arguments.count, arguments.seed, arguments.base)
        return 0
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        base = arguments.base or base_bundle(Path(folder) / "I")
        for kind in KINDS:
            count = getattr(arguments, kind)
            if count:
                began = time.monotonic()
                outcome = run(kind, arguments.first, count, arguments.seed, base)
                print(report(kind, outcome, time.monotonic() - began))
                wrong |= bool(outcome.wrong)
    return int(wrong)


def base_bundle(path: Path) -> Path:
    """Policy I, converted to fp32 and int8."""
    from quarl.convert.pipeline import convert_all
    from quarl.policy.bundle import Bundle, copy_bundle
    from quarl.policy.places import ZOO
    from quarl.policy.spec import ArtifactFormat, Precision

    copy = copy_bundle(Bundle.load(ZOO / "I"), path, "zoo")
    convert_all([copy], [Precision.FP32, Precision.INT8], list(ArtifactFormat))
    return path


def report(kind: str, outcome: Outcome, seconds: float) -> str:
    """The figures, and each input that was wrong."""
    lines = [f"{sum(outcome.counts.values()):,} {kind} in {seconds:.0f} s"]
    lines += [f"  {count:7,}  {word}" for word, count in outcome.counts.most_common()]
    lines.append(f"  longest {outcome.longest_s:.3f} s, most memory {outcome.most_bytes / 1e6:.1f} MB")
    lines += [f"  --first {number}: {word}" for number, word in outcome.wrong[:20]]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    raise SystemExit(main())
