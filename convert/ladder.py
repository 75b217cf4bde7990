"""``--bits auto``: what each precision keeps of a policy, from few bits to many, and what is to blame where it falls.

A precision is compared with what was trained: by its actions on golden and calibration observations, and, where the
task is known, by the return of the same greedy episodes. How many episodes follows from how much the differences of the
first ones vary, not from their mean, so that one interval is computed of all of them (Stein 1945). What is chosen by
some episodes is reported on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quarl.convert.acceptance import agreement
from quarl.convert.mixed import widths_of
from quarl.convert.opaque import impossible
from quarl.convert.pipeline import Quantized, build_candidate, quantize
from quarl.policy.bundle import Bundle
from quarl.policy.errors import QuarlError
from quarl.policy.ladder import Ladder, Loss, Prefer, Rung, read_ladder
from quarl.policy.locate import code_version
from quarl.policy.pilot import deciding
from quarl.policy.reading import WEIGHTS_FILE
from quarl.policy.reference import Floats, forward_float, forward_integer, layer_names
from quarl.policy.simulate import Simulated, forward_simulated, forward_stored, simulate
from quarl.policy.spec import PROGRAM, ArtifactFormat, PolicySpec, Precision, RuntimeName
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from quarl.train.suites.episodes import Decide
    from quarl.train.suites.task import Task

TRIED = (
    Precision.INT4,
    Precision.MIXED,
    Precision.INT8,
    Precision.W4,
    Precision.DYNAMIC,
    Precision.W8,
    Precision.FP16,
    Precision.FP32,
)
"""Beside the width that the policy was trained for."""
MAX_LOSS = 1.0
FLIGHTS, EPISODES, GAMES = 500, 50, 10  # navigation is flown 128 drones at a time; a game of images takes seconds
MOST = 16
"""Times as many episodes at most, where the first ones vary much."""
SEED, FRESH_SEED = 7, 8
ROWS, IMAGES = 1024, 64
"""Of the calibration observations, beside the golden ones."""
Counter = Callable[[Bundle, Precision], Mapping[RuntimeName, int]]
"""Instructions of one decision in each runtime; see ``bench.qemu_counter``."""


@dataclass(frozen=True)
class Question:
    """What is asked of a policy.

    Attributes:
        max_loss: percent of the return that may be lost.
        prefer: which of the precisions that keep it is taken.
        episodes: on which they are compared at first; None: the task's usual number.
        task: where the policy's bundle does not name it or not all of it.
    """

    max_loss: float = MAX_LOSS
    prefer: Prefer = Prefer.SIZE
    episodes: int | None = None
    task: Task | None = None


def find_ladder(bundle: Bundle, question: Question) -> Ladder | None:
    """Return the ladder in a bundle if it answers the question.

    It does not if a number of episodes is given, or if a precision that is possible has not been tried.
    """
    found = None if question.episodes else read_ladder(bundle)
    if found is None or (found.max_loss, found.prefer) != (question.max_loss, question.prefer):
        return None
    untried = {each for each in _possible(bundle, found.trained) if found.rung(each) is None}
    return found if untried <= {Precision.MIXED} else None


def climb(
    bundle: Bundle,
    question: Question,
    formats: Sequence[ArtifactFormat] = tuple(ArtifactFormat),
    count: Counter | None = None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Ladder:
    """Return the ladder of a policy, which is written into its bundle.

    Args:
        bundle: the policy.
        question: what is asked.
        formats: that a choice is wanted for.
        count: counts instructions, of which ``Prefer.SPEED`` takes the fewest.
        report: called with a sentence for each step.

    Raises:
        QuantizationError: weights or calibration cannot be quantized.
    """
    spec = bundle.spec
    trained = Precision.FP32 if spec.quantization is None else Precision.from_bits(spec.quantization.bits)
    policies = {precision: quantize(bundle, precision) for precision in _possible(bundle, trained)}
    mixed = policies.get(Precision.MIXED)
    bits = None if mixed is None or mixed.recipe is None else mixed.recipe.bits
    if isinstance(bits, Mapping) and set(bits.values()) == {Precision.INT4.bits}:
        del policies[Precision.MIXED]  # the same as int4
    rows = _observations(bundle)
    wanted = _results(spec, policies[trained])(rows)
    judge, why_not = _judge(bundle, question, policies[trained])
    rungs = []
    for precision, quantized in policies.items():
        sizes = {
            form: len(build_candidate(spec, quantized, form).data)
            for form in ArtifactFormat
            if not impossible(spec, form, precision)
        }
        results = _results(spec, quantized)
        report(f"{precision.value}: comparing actions{' and returns' if judge else ''} …")
        loss = judge.lose(results) if judge is not None and precision is not trained else None
        instructions = count(bundle, precision) if count is not None else None
        rungs.append(Rung(precision, agreement(spec, results(rows), wanted), sizes, loss, instructions=instructions))
    ladder = Ladder(
        weights_sha256=bundle.manifest.files[WEIGHTS_FILE].sha256,
        trained=trained,
        task="" if judge is None else judge.task.name,
        preset="" if judge is None else judge.preset,
        seed=SEED,
        max_loss=question.max_loss,
        prefer=question.prefer,
        rungs=tuple(rungs),
        code=code_version(),
    )
    ladder = replace(ladder, hints=(*why_not, *_hints(bundle, ladder, policies, rows, wanted)))
    if judge is not None:
        fresh = replace(judge, seed=FRESH_SEED)
        for precision in {ladder.choose([form]) for form in formats if ladder.has_choice(form)} - {trained}:
            if (rung := ladder.rung(precision)) is not None and rung.loss is not None:
                report(f"{precision.value}: other episodes …")
                loss = fresh.compare(_results(spec, policies[precision]), rung.loss.episodes)
                ladder = ladder if loss is None else ladder.with_fresh(precision, loss)
    ladder.write(bundle.path)
    return ladder


def _possible(bundle: Bundle, trained: Precision) -> list[Precision]:
    """Return the precisions that a policy can have, from few bits to many."""
    tried = sorted({*TRIED, trained}, key=lambda precision: (precision.bits, list(Precision).index(precision)))
    return [
        precision
        for precision in tried
        if not all(impossible(bundle.spec, form, precision) for form in ArtifactFormat)
        and (len(bundle.calibration()) or not precision.is_integer)
    ]


def _observations(bundle: Bundle) -> Floats:
    calibration = bundle.calibration()
    count = min(IMAGES if bundle.spec.is_image else ROWS, len(calibration))
    some = calibration[np.linspace(0, len(calibration) - 1, count).astype(int)] if count else calibration[:0]
    return np.concatenate([bundle.golden().observations, some])


def _results(spec: PolicySpec, quantized: Quantized) -> Callable[[Floats], Floats]:
    """Return raw observations (n, observation_size) to results (n, result_size), as its artifacts compute them."""
    network = quantized.network
    if network is not None:
        return lambda rows: forward_integer(spec, network, rows)
    if quantized.program:  # an opaque policy's weights are its artifact
        return partial(forward_float, spec, {PROGRAM: np.frombuffer(quantized.program, np.uint8)})
    return forward_stored(spec, quantized.contents.weights, quantized.precision)


# --- returns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """Compares returns on the same greedy episodes.

    Attributes:
        task, preset, seed: of the episodes.
        episodes: at first; ``MOST`` times as many at most.
        max_loss: percent that may be lost.
        spec: the policy.
        own: what it computes itself.
        flown: its returns by seed and number of episodes.
    """

    task: Task
    preset: str
    seed: int
    episodes: int
    max_loss: float
    spec: PolicySpec
    own: Callable[[Floats], Floats]
    flown: dict[tuple[int, int], list[float]]

    def compare(self, results: Callable[[Floats], Floats], episodes: int) -> Loss | None:
        """Return what is lost on this many episodes; None where the policy's own mean return is 0."""
        key = self.seed, episodes
        if key not in self.flown:
            self.flown[key] = self._returns(self.own, episodes)
        returns = self._returns(results, episodes)
        lost = Estimate.of_relative_error(returns, self.flown[key])
        if lost is None or lost.low is None or lost.high is None:
            return None
        high = lost.high
        if returns == self.flown[key]:
            # Equal in n episodes, in 3 / n of all at most (the 95 % bound of 0 of n), which may lose everything.
            high = 100.0 * 3.0 / len(returns)
        return Loss(lost.value, lost.low, high, len(returns))

    def lose(self, results: Callable[[Floats], Floats]) -> Loss | None:
        """Return what is lost, on as many episodes as their differences ask for.

        What is lost beyond doubt after the first ones is not flown again: a precision is never taken by them.
        """
        first = self.compare(results, self.episodes)
        if first is None or first.low > self.max_loss:
            return first
        most = MOST * self.episodes
        if first.percent == first.low:  # equal in all
            wanted = 300.0 / self.max_loss
            most = most if self.task.is_image else max(most, math.ceil(wanted))
        else:
            wanted = self.episodes * ((first.high - first.low) / self.max_loss) ** 2
        episodes = min(max(math.ceil(wanted), self.episodes), most)
        return first if episodes == self.episodes else self.compare(results, episodes)

    def _returns(self, results: Callable[[Floats], Floats], episodes: int) -> list[float]:
        decide: Decide = deciding(self.spec, lambda rows: results(rows.reshape(len(rows), -1)))
        return list(self.task.evaluate(decide, episodes, self.seed, self.preset).different)


def _judge(bundle: Bundle, question: Question, own: Quantized) -> tuple[Judge | None, tuple[str, ...]]:
    """Return what compares returns; or None, and a sentence that says why the return is not known."""
    from quarl.train.evaluate import check_task, task_options
    from quarl.train.suites.make import make_task
    from quarl.train.suites.names import NAVIGATION
    from quarl.train.suites.task import unpair_if_unseeded

    spec, task = bundle.spec, question.task
    try:
        if task is None:
            if "task" not in spec.provenance:
                return None, ("The task is not known, so actions alone are compared.",)
            name = str(spec.provenance["task"])
            task = make_task(name, options=task_options(spec, name))
        check_task(spec, task)
    except QuarlError as error:  # a suite that is not installed is a TaskError
        return None, (f"Actions alone are compared, since the task cannot be played here: {error}",)
    task = unpair_if_unseeded(task, SEED)
    if not task.paired:
        return None, (f"Actions alone are compared: episodes of {task.name} cannot be repeated.",)
    usual = FLIGHTS if task.name == NAVIGATION else GAMES if task.is_image else EPISODES
    return Judge(
        task=task,
        preset=task.presets[0],
        seed=SEED,
        episodes=question.episodes or usual,
        max_loss=question.max_loss,
        spec=spec,
        own=_results(spec, own),
        flown={},
    ), ()


# --- what is to blame -------------------------------------------------------------------------------------------------


def _hints(
    bundle: Bundle, ladder: Ladder, policies: Mapping[Precision, Quantized], rows: Floats, wanted: Floats
) -> tuple[str, ...]:
    """Return sentences on the widest integers that do not keep the return: which layer is to blame, what would help."""
    fallen = [rung for rung in ladder.rungs if not ladder.keeps(rung) and rung.precision.is_integer]
    undecided = [rung.precision.value for rung in ladder.rungs if ladder.keeps(rung) is None]
    hints = []
    if undecided:
        most = max(rung.loss.episodes for rung in ladder.rungs if rung.loss is not None)
        hints.append(
            f"{', '.join(undecided)}: {most:,} episodes are too few to decide whether more than {ladder.max_loss:g} % "
            f"of the return is lost. More: --episodes {most}."
        )
    if fallen:
        worst = max(fallen, key=lambda rung: rung.precision.bits)
        recipe = policies[worst.precision].recipe
        if not bundle.spec.network.opaque and recipe is not None:
            names = layer_names(bundle.spec)
            bits = recipe.bits if isinstance(recipe.bits, Mapping) else dict.fromkeys(names, recipe.bits)
            base, by_layer = float_layers(bundle, bits, rows, wanted)
            hints.append(_blame(worst.precision, base, by_layer))
        if bundle.spec.quantization is None and "algorithm" in bundle.spec.provenance:
            hints.append(
                f"Training for {worst.precision.bits} bits may keep more: quarl train with --quantization-method "
                f"quantization-aware --precision {worst.precision.bits}."
            )
    return tuple(hints)


def float_layers(
    bundle: Bundle, bits: Mapping[str, int], rows: Floats, wanted: Floats
) -> tuple[float, dict[str, float]]:
    """Return the agreement in integers of these widths, and by layer what it would be if that layer stayed in float."""
    spec, weights = bundle.spec, bundle.weights()
    simulated = simulate(spec, weights, bundle.calibration(), widths_of(bits))

    def agrees(simulated: Simulated) -> float:
        return agreement(spec, forward_simulated(spec, simulated, rows), wanted)

    by_layer = {}
    for layer in bits:
        own = {name: value for name, value in weights.items() if name.startswith(f"{layer}/")}
        maps = {name: affine for name, affine in simulated.maps.items() if name not in (layer, f"{layer}/linear")}
        by_layer[layer] = agrees(Simulated(simulated.widths, {**simulated.weights, **own}, maps))
    return agrees(simulated), by_layer


def _blame(precision: Precision, base: float, by_layer: Mapping[str, float]) -> str:
    layer = max(by_layer, key=lambda name: by_layer[name])
    better = f"with {layer} in float, {by_layer[layer]:.1%} of the decisions would agree, not {base:.1%}"
    if by_layer[layer] - base >= (1.0 - base) / 2:
        return f"{precision.value}: {layer} is to blame: {better}."
    return f"{precision.value}: no single layer is to blame: {better}."
