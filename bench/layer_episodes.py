"""Which bundles the studies of single parts of a policy ask, how many episodes they fly, and flying them.

Shared by ``bench.precision_apart`` and ``bench.layer_widths``. Episodes follow from seed and number alone, so that two
policies are compared episode by episode. Robots and the control suite take seconds an episode and fly fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from bench import command_line
from bench.interval import Estimate
from policy.locate import ARTIFACTS, ZOO
from policy.manifest import MANIFEST_FILE

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from train.suites.episodes import Decide
    from train.suites.task import Task

BENCHMARK = (
    "cartpole-ppo", "cartpole-a2c", "cartpole-dqn", "mountaincar-dqn", "acrobot-dqn", "mountaincarcontinuous-ddpg",
    "pendulum-ppo", "pendulum-ddpg", "walker2d-ddpg", "bipedalwalker-ddpg", "cartpole_balance-d4pg",
    "walker_stand-d4pg", "halfcheetah-ddpg",
)  # fmt: skip
"""Perceptrons among zoo/benchmark/, the slow simulators last."""
BUNDLES = ("I", "II", *BENCHMARK, "III")

SEEDS = (0, 2, 4)  # the paper's: of what is swept, and of what an assignment is chosen by
FRESH_SEEDS = (11, 13, 17)  # on which an assignment is judged: nothing was chosen by these
EPISODES = 100
EPISODES_OF = {
    "I": 400, "II": 400,  # where returns vary most
    "III": 100, "walker2d-ddpg": 14, "bipedalwalker-ddpg": 14, "cartpole_balance-d4pg": 14, "walker_stand-d4pg": 14,
    "halfcheetah-ddpg": 14,
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One bundle to be measured.

    Attributes:
        bundle: it.
        task: that it was trained on.
        episodes: of each seed.
    """

    bundle: Bundle
    task: Task
    episodes: int

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.bundle.path.name

    @property
    def weights_sha256(self) -> str:
        """Of the weights that are measured."""
        return weights_sha256(self.bundle)

    @property
    def preset(self) -> str:
        """The one that it was trained on and is flown on; "" where the task has none."""
        return self.task.presets[0]


def committed(name: str) -> Path:
    """Folder of one of :data:`BUNDLES`."""
    return ZOO / "benchmark" / name if name in BENCHMARK else ZOO / name


def folder_of(name: str) -> Path:
    """Folder of a bundle as it is typed: a name of :data:`BUNDLES`, another one for artifacts/NAME, or a path."""
    if name in BUNDLES:
        return committed(name)
    return Path(name) if "/" in name else ARTIFACTS / name


def weights_sha256(bundle: Bundle) -> str:
    """Of a bundle's weights."""
    return bundle.manifest.files["weights.safetensors"].sha256


def open_asked(name: str, episodes: int | None) -> Asked:
    """A bundle by name or folder; names of :data:`BUNDLES` mean those of the zoo, whatever stands in artifacts/.

    Raises:
        UsageError: there is none, its task is not installed here, its policy has convolutions, or it was trained with
            quantizers (whose widths belong together).
    """
    from bench.sweep import open_bundle

    bundle, task = open_bundle(str(committed(name)) if name in BUNDLES else name)
    if bundle.spec.network.convolutions:
        raise command_line.UsageError(
            f"{name} has convolutions; this study is of perceptrons.", f"python -m bench.sweep {name}"
        )
    trained = bundle.spec.quantization
    if trained is not None:
        raise command_line.UsageError(
            f"{name} was trained with quantizers of {trained.bits} bits; this study is of policies trained in floats.",
            f"python -m bench.sweep {name} --scheme symmetric",
        )
    return Asked(bundle, task, episodes or EPISODES_OF.get(bundle.path.name, EPISODES))


def fly(asked: Asked, decide: Decide, seeds: Sequence[int], episodes: int | None = None) -> tuple[float, ...]:
    """Returns of greedy episodes, those of all seeds one after the other."""
    results = [asked.task.evaluate(decide, episodes or asked.episodes, seed, asked.preset) for seed in seeds]
    return tuple(value for result in results for value in result.returns)


def relative_error(returns: Sequence[float], reference: Sequence[float]) -> Estimate:
    """:meth:`bench.interval.Estimate.of_relative_error`.

    Raises:
        BenchError: fp32's mean return is 0, so that nothing is relative to it.
    """
    found = Estimate.of_relative_error(returns, reference)
    if found is None:
        raise command_line.BenchError(
            "fp32's mean return is 0: no error is relative to it.", "take a bundle whose policy earns something"
        )
    return found


def contrast(one: Sequence[float], other: Sequence[float], reference: Sequence[float]) -> Estimate:
    """How much more one loses than the other on the same episodes: the difference of their relative errors, in percent.

    100 · (other − one) / |fp32|, fp32's mean taken as known: whether the interval holds 0 does not depend on it.

    Raises:
        BenchError: fp32's mean return is 0.
    """
    relative_error(one, reference)  # refuses a mean of 0
    mean = abs(sum(reference) / len(reference))
    return Estimate.of_mean([100.0 * (b - a) / mean for a, b in zip(one, other, strict=True)])


def is_above(estimate: Estimate, bound: float = 0.0) -> bool:
    """Whether the whole interval lies above; never of an estimate without an interval."""
    return estimate.low is not None and estimate.low > bound


def is_within(estimate: Estimate, bound: float) -> bool:
    """Whether the whole interval lies at or below; never of an estimate without an interval."""
    return estimate.high is not None and estimate.high <= bound


class Answer(Protocol):
    """What both studies keep of a bundle."""

    @property
    def bundle(self) -> str: ...  # noqa: D102

    @property
    def weights_sha256(self) -> str: ...  # noqa: D102


Kept = TypeVar("Kept", bound=Answer)


def current(answers: Sequence[Kept], command: str, names: Sequence[str] | None = None) -> list[Kept]:
    """Those about the weights that their bundles have now; the others are named on standard error.

    Of a bundle that is gone, or lies elsewhere than where ``names`` or artifacts/ have it, the answer stays.

    Args:
        answers: that are kept.
        command: to measure them again by.
        names: of bundles, as typed, of which answers are wanted; None for all.
    """
    from policy.bundle import Bundle

    typed = {Path(name).name: name for name in names or ()}
    found = []
    for each in answers:
        if names is not None and each.bundle not in typed:
            continue
        name = typed.get(each.bundle, each.bundle)
        folder = folder_of(name)
        if (folder / MANIFEST_FILE).exists() and weights_sha256(Bundle.load(folder)) != each.weights_sha256:
            may_keep = each.bundle not in BUNDLES or folder.resolve() == committed(each.bundle)
            command_line.say(
                f"{each.bundle}: the kept answer is about other weights and left out; next: "
                f"python -m bench.{command} {name}{' --keep' * may_keep}"
            )
        else:
            found.append(each)
    return found


def as_asked(answers: Sequence[Kept], differing: Callable[[Kept], Mapping[str, bool]]) -> list[Kept]:
    """Those that were measured as is asked; of the others standard error says that they are measured again.

    Args:
        answers: that are kept.
        differing: options and whether an answer was measured with another value than was typed.
    """
    found = []
    for each in answers:
        if options := [option for option, differs in differing(each).items() if differs]:
            command_line.say(f"{each.bundle}: kept with other {', '.join(options)} than asked for; measured again")
        else:
            found.append(each)
    return found


def in_order(answers: Iterable[Kept]) -> list[Kept]:
    """As :data:`BUNDLES` has them, others after them."""
    places = {name: index for index, name in enumerate(BUNDLES)}
    return sorted(answers, key=lambda each: (places.get(each.bundle, len(places)), each.bundle))


def open_all(
    names: Sequence[str], done: Container[str], episodes: int | None, keeping: str | None = None
) -> list[Asked]:
    """The bundles to be measured, but those that are done. All are opened before anything flies.

    Args:
        names: of bundles, as typed.
        done: names of folders.
        episodes: of each seed; None for those of :data:`EPISODES_OF`.
        keeping: the command that is to keep the answers, if they are to be kept.

    Raises:
        UsageError: as :func:`open_asked`; or an answer to be kept would replace that of a committed bundle.
    """
    from bench.sweep import check_keeping

    found = [open_asked(name, episodes) for name in names if Path(name).name not in done]
    if keeping is not None:
        for asked in found:
            check_keeping(asked.bundle, keeping)
    return found
