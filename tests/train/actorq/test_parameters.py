"""The parameter server: a version is built once, only if somebody asks, and nobody waits but the first."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from quarl.policy.errors import PolicyError
from quarl.policy.spec import ArtifactFormat
from quarl.train.actorq import parameters
from quarl.train.actorq.parameters import ParameterServer
from quarl.train.actorq.wire import Published, Pushed, publish
from tests.train.actorq.small_plans import make_spec, make_weights, push

PATIENCE_S = 60.0  # for what must come; nothing is timed


class Builds:
    """Stands in for :func:`publish`: remembers what was built, and builds only what it is let build."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)

    def __call__(self, pushed: Pushed, version: int, *made_as: Any) -> Published:
        self.versions.append(version)
        self.begun.release()
        assert self.allowed.acquire(timeout=PATIENCE_S)
        return publish(pushed, version, *made_as)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    made = Builds()
    monkeypatch.setattr(parameters, "publish", made)
    return made


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with closing(ParameterServer(8, 8)) as made:
        yield made


def pushed(updates: int, broken: bool = False) -> Pushed:
    spec = make_spec()
    weights = make_weights(spec, updates)
    if broken:
        weights["head/kernel"][0, 0] = np.nan
    return push(spec, weights, updates)


def wait_for(server: ParameterServer, version: int) -> Published:
    """Ask until that version is ready."""
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        found = server.latest(version - 1)
        if found is not None:
            return found
        tick.wait(0.01)
    raise AssertionError(f"version {version} never came")


def figures(server: ParameterServer, *names: str) -> list[Any]:
    facts = server.facts()
    return [facts[name] for name in names]


def test_the_first_version_is_waited_for_and_served_to_those_who_lack_it(server: ParameterServer) -> None:
    assert server.latest(0) is None
    assert figures(server, "versions_put", "versions_built", "bytes_served") == [0, 0, 0]
    server.put(pushed(5))
    found = server.latest(0)
    assert found is not None
    assert (found.version, found.updates) == (1, 5)
    assert found.data.tobytes() == publish(pushed(5), 1, 8, 8).data.tobytes()
    assert server.latest(1) is None
    assert server.latest(0) is found
    size = found.data.nbytes
    assert figures(server, "pulls", "bytes_served", "bytes_each") == [4, 2 * size, size]
    assert server.facts()["quantization_error"] > 0.0


def test_no_version_is_built_twice_however_many_ask(server: ParameterServer, builds: Builds) -> None:
    server.put(pushed(1))
    with ThreadPoolExecutor(8) as pullers:
        waiting = [pullers.submit(server.latest, 0) for _ in range(8)]
        assert builds.begun.acquire(timeout=PATIENCE_S)
        builds.allowed.release()
        found = [each.result(PATIENCE_S) for each in waiting]
    assert [each.version for each in found if each is not None] == [1] * 8
    for known in (0, 1, 0, 1):
        server.latest(known)
    assert builds.versions == [1]


def test_a_version_that_nobody_asked_for_is_never_built(server: ParameterServer, builds: Builds) -> None:
    builds.allowed.release()
    for updates in (1, 2, 3):
        server.put(pushed(updates))
    assert builds.versions == []
    found = server.latest(0)
    assert found is not None
    assert (found.version, found.updates) == (3, 3)
    assert builds.versions == [3]
    assert figures(server, "versions_put", "versions_built", "versions_skipped") == [3, 1, 2]


def test_who_has_a_version_never_waits_for_the_next(server: ParameterServer, builds: Builds) -> None:
    builds.allowed.release()
    server.put(pushed(1))
    first = server.latest(0)
    server.put(pushed(2))
    # Version 2 is held back: who asks gets what there is, or nothing newer, and returns.
    assert server.latest(1) is None
    assert builds.begun.acquire(timeout=PATIENCE_S) and builds.begun.acquire(timeout=PATIENCE_S)
    assert server.latest(0) is first
    # What is put while version 2 is being built waits for it; of two only the newer is built.
    server.put(pushed(3))
    server.put(pushed(4))
    assert server.latest(1) is None
    assert builds.versions == [1, 2]
    builds.allowed.release(2)
    assert wait_for(server, 2).version in (2, 4)
    assert (wait_for(server, 4).version, wait_for(server, 4).updates) == (4, 4)
    assert builds.versions == [1, 2, 4]
    assert figures(server, "versions_put", "versions_built", "versions_skipped") == [4, 3, 1]


def test_a_failed_build_is_reported_and_the_next_one_made(server: ParameterServer) -> None:
    server.put(pushed(1, broken=True))
    with pytest.raises(PolicyError, match=r"(?i)NaN|finite"):
        server.latest(0)
    server.put(pushed(2))
    assert wait_for(server, 2).version == 2


def test_an_error_behind_a_pullers_back_reaches_a_later_one(server: ParameterServer) -> None:
    server.put(pushed(1))
    assert server.latest(0) is not None
    server.put(pushed(2, broken=True))
    with pytest.raises(PolicyError, match=r"(?i)NaN|finite"):
        wait_for(server, 2)
    server.put(pushed(3))
    assert wait_for(server, 3).updates == 3


def test_a_learner_that_begins_anew_has_handed_over_nothing(server: ParameterServer) -> None:
    server.put(pushed(5))
    first, newest = server.latest(0), server.newest()
    assert newest is not None and newest.updates == 5
    server.forget()
    assert server.newest() is None and server.latest(0) is first


def test_versions_are_built_in_the_format_that_actors_execute() -> None:
    with closing(ParameterServer(8, 8, artifact_format=ArtifactFormat.NATIVE)) as server:
        server.put(pushed(5))
        found = wait_for(server, 1)
    assert found.data.tobytes() == publish(pushed(5), 1, 8, 8, ArtifactFormat.NATIVE).data.tobytes()


def test_close_ends_the_thread() -> None:
    before = set(threading.enumerate())
    server = ParameterServer(8, 8)
    server.put(pushed(1))
    server.latest(0)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 1
    server.close()
    assert not any(thread.is_alive() for thread in mine)
