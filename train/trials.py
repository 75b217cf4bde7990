"""What ``quarl evaluate`` judges on: presets, or with ``--zones`` four zones of goal distance of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quarl.train.suites.task import Task


@dataclass(frozen=True)
class Trial:
    """Episodes that every policy of a report flies.

    Attributes:
        task: what they are of.
        preset: the arena; "" where the task has none.
        marks: what a report says of them: ``zone``, 1 to 4, and ``goal_distance_m``, its nearest and farthest goal;
            empty for the whole preset.
    """

    task: Task
    preset: str
    marks: Mapping[str, Any] = field(default_factory=dict)


def trials(task: Task, options: Mapping[str, Any], presets: Sequence[str], zones: bool) -> Iterator[Trial]:
    """Yield a trial for each preset, or for each of its zones (Air Learning's test: 100 episodes a zone).

    Args:
        task: the task, and the ``options`` that it was made with.
        presets: which.
        zones: goals of one zone only, not of the nearer ones too as in training.

    Raises:
        TaskError: a preset is not known.
    """
    if not zones:
        yield from (Trial(task, preset) for preset in presets)
        return
    from quarl.train.suites.make import make_task
    from quarl.train.suites.navigation import arena
    from quarl.train.suites.zones import zones_of

    for preset in presets:
        for number, config in enumerate(zones_of(arena(preset)), start=1):
            distances = list(config.goal_distance_m)
            settings = {**options.get("judged", {}), "goal_distance_m": distances}
            one = make_task(task.name, None, {**options, "judged": settings})
            yield Trial(one, preset, {"zone": number, "goal_distance_m": distances})
