"""What is stored is drawn from its rows and the committed bundles: no suite is imported, and no task is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quarl.bench.study.experiment import EpisodePlan
from quarl.bench.study.records import Record
from quarl.bench.study.running import StudyCell, select_cells
from tests.without_suites import run

TYPED = "from quarl.bench.study.__main__ import main\n"


def typed(*words: str) -> str:
    """The script that types a command of ``quarl study``, which has to end well."""
    return f"assert main({list(words)!r}) == 0\n"


def test_what_has_to_be_measured_is_refused_and_what_is_stored_is_not() -> None:
    measured = (
        ("sweep", "--bits", "9", "--missing"),
        ("sweep", "--scheme", "quarl", "--bits", "6"),
        ("cells", "--runtime", "onnxruntime"),
    )
    refused = [f"assert main({[name, 'walker2d-ddpg', *words]!r}) == 2\n" for name, *words in measured]
    done = run(TYPED + typed("sweep", "walker2d-ddpg", "--stored", "--json") + "".join(refused))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Policy walker2d-ddpg: ") == 1 + len(measured)
    refusals = [
        line for line in done.stderr.splitlines() if line.startswith("error: --task walker2d requires pybullet")
    ]
    assert len(refusals) == len(measured) and all("make suites" in line for line in refusals), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("seeds", "count", "again"),
    [((0,), 2, False), ((0, 2), 3, False), ((0,), 4, True), ((0, 4), 2, True)],
)
def test_a_subject_is_taken_from_what_is_stored_or_measured_whole(
    recorded: Callable[..., Record], seeds: tuple[int, ...], count: int, again: bool
) -> None:
    kept = [recorded({"bits": bits}, [1.0] * 3, name, seed) for name in "ab" for bits in (2, 3) for seed in (0, 2)]
    kept += [recorded({"bits": 2}, [1.0], "a", 4)]
    requested = [StudyCell(name, {"bits": bits}, EpisodePlan(seeds, count)) for name in "ab" for bits in (2, 3)]
    found, todo = select_cells([*requested, StudyCell("c", {"bits": 2}, EpisodePlan((0,), 1))], kept)
    assert [cell.subject for cell in todo] == (["a", "a", "b", "b", "c"] if again else ["c"])
    assert len(found) == (0 if again else len(kept))
    found, _ = select_cells(requested[:1], kept)  # the other width was not asked for
    assert {record["condition"]["bits"] for record in found} == (set() if again else {2})
