"""For all tests: no runtime talks to its maker, nothing is written into the user's home; and CI, whose machine has
everything, leaves nothing out for a lack."""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, PolicySpec
from tests import home

USERS_HOME = Path.home()
BEFORE = home.move()

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# As in an active environment: messages say `python`.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.pop("MAKEFLAGS", None)
"""`make test BARE=` would hand its variable on to every make that a test starts."""
os.umask(0o022)
"""Where it is 002, as on Ubuntu, what a test writes would be its group's, too, and no such list of signers counts."""
LACKS = ("apt-get", "make pi", "make suites", "make actorq", "make airsim", "--prepare", "needs root")
"""Words of the reasons for which a test is left out on a machine that lacks something."""


LONGEST = (
    "tests/virtual_pi/test_virtual_pi.py",
    "tests/train/actorq/test_actorq_runs",
    "tests/bench/report/test_pages",
    "tests/first_hour/",
    "tests/learning/",
    "tests/virtual_pi/",
    "tests/bench/report/",
    "tests/fuzz/",
    "tests/bench/",
)
"""Files and rooms that take longest, longest first: begun first, so that no process is left with one of them at the
end. An emulated machine computes on every core."""


SECONDS = Path(__file__).with_name("seconds.json")
"""Of the fast tests of each file, as ``--store-seconds`` found them."""
QUICK_S = 5.0
"""What the files that ``--quick`` takes need together; collecting and loading take as long and longer."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help=f"only the quickest files, {QUICK_S:g} s of tests in all")
    parser.addoption("--store-seconds", action="store_true", help=f"write what each file took to {SECONDS.name}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        seconds, total, kept = json.loads(SECONDS.read_text()), 0.0, set[str]()
        for file in sorted({file_of(item.nodeid) for item in items}, key=lambda file: seconds.get(file, 0.0)):
            if (total := total + seconds.get(file, 0.0)) <= QUICK_S:
                kept.add(file)
        config.hook.pytest_deselected(items=[item for item in items if file_of(item.nodeid) not in kept])
        items[:] = [item for item in items if file_of(item.nodeid) in kept]

    if "CI" in os.environ:
        by_hand = [item for item in items if item.get_closest_marker("not_in_ci")]
        config.hook.pytest_deselected(items=by_hand)
        items[:] = [item for item in items if item not in by_hand]

    def place(item: pytest.Item) -> int:
        return next((k for k, place in enumerate(LONGEST) if item.nodeid.startswith(place)), len(LONGEST))

    items.sort(key=place)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.fixture(autouse=True)
def every_room_is_loaded_once() -> Iterator[None]:
    """A patch of ``policy.spec``, say, would load it beside ``quarl.policy.spec``, and change nothing."""
    yield
    assert not {"policy", "airlearning_envs", "train", "convert", "device", "bench"} & sys.modules.keys()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if BEFORE and (written := home.entries(USERS_HOME) - BEFORE):
        print(f"The tests wrote into the user's home: {', '.join(map(str, sorted(written)))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if os.environ.get("CI") and lacking(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was not tested on this machine, a line a reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    spent, of_files = {True: 0.0, False: 0.0}, defaultdict[str, float](float)
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if hasattr(report, "duration"):
            spent["slow" in report.keywords] += report.duration
            of_files[file_of(report.nodeid)] += 0.0 if "slow" in report.keywords else report.duration
    if config.getoption("store_seconds"):
        found = {file: round(seconds, 1) for file, seconds in sorted(of_files.items())}
        SECONDS.write_text(json.dumps(found, indent=1) + "\n")
    if os.environ.get("CI"):
        for name, seconds in (("fast", spent[False]), ("slow", spent[True])):
            terminalreporter.write_line(f"{name} tests: {seconds / 60:.1f} min of the processes together")
    if reasons:
        terminalreporter.section("not tested on this machine")
        for reason, tests in reasons.most_common():
            terminalreporter.write_line(f"{tests:4} {'test ' if tests == 1 else 'tests'}  {reason}")
    if os.environ.get("CI") and (lacks := lacking(config)):
        terminalreporter.write_line("CI left tests out, so it fails:\n" + "\n".join(lacks), red=True)


def lacking(config: pytest.Config) -> list[str]:
    """The reasons of the tests that were left out because this machine lacks something."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = [] if reporter is None else [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    return [reason for reason in skipped if any(word in reason for word in LACKS)]


@pytest.fixture(scope="session")
def balancing() -> Callable[..., Bundle]:
    """Writes a policy that balances CartPole by hand: push to where the pole falls; ``sign=-1`` does the opposite."""
    from quarl.train.suites.make import make_task

    def write(path: Path, sign: float = 1.0, **provenance: Any) -> Bundle:
        task = make_task("CartPole-v1")
        # z = 0.1 x + 0.5 v + 10 angle + 3 angular velocity; relu(z) speaks for the right, relu(-z) for the left.
        push = sign * np.array([0.1, 0.5, 10.0, 3.0], np.float32)
        weights = {
            "dense_0/kernel": np.stack([-push, push], axis=1),
            "dense_0/bias": np.zeros(2, np.float32),
            "head/kernel": np.eye(2, dtype=np.float32),
            "head/bias": np.zeros(2, np.float32),
        }
        origin = {"task": "CartPole-v1", "algorithm": "dqn", "seed": 3, "steps": 1000, "cpu_s": 7.2, **provenance}
        head = DiscreteHead(("action_0", "action_1"))
        environment = EnvironmentSpec("CartPole-v1")
        spec = PolicySpec(
            path.name, task.observation, Normaliser((0.0,) * 4, (1.0,) * 4, 1e6), NetworkSpec((2,)), head, 0.02,
            environment, origin,
        )  # fmt: skip
        spread = np.array([1.0, 1.0, 0.1, 1.0])
        seen = (np.random.default_rng(0).uniform(-1, 1, (600, 4)) * spread).astype(np.float32)
        return write_bundle(path, spec, weights, seen[:400], seen[400:])

    return write
