"""How few bits can a policy take? Post-training quantization to every width, the same episodes with each.

    python -m bench.study sweep cartpole-dqn
    python -m bench.study sweep II --scheme symmetric --bits 2-8 --seeds 0,2,4 --episodes 100
    python -m bench.study sweep I --bits 32 --activation-bits 3
    python -m bench.study sweep --keep                      measures what is not kept yet of all committed policies
    python -m bench.study sweep --stored --update-docs      fills docs/study.md, draws the pictures

quarl is the paper's affine quantizer, per tensor, of weights and activations; quarl-released is what its released
script computes instead (weights only); symmetric is what devices run, per output channel, with activations of 8 bits
where the weights have fewer. The observation and the outputs keep 8 bits or more (policy/simulated.py). Without
--scheme and the options about activations all of these are measured. Of one policy the table has every width, and says
how a device would execute it; of several the widths that decide. Quantization is simulated in float.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bench import command_line
from bench.measuring.execution import DEVICE_ACTIVATION_BITS
from bench.study.experiment import Episodes, Experiment, Played
from bench.study.flying import BENCHMARK, SEEDS, fly, load, open_bundle, quantized, weights_hash
from bench.study.records import Condition
from bench.study.tables.sweep_tables import FLOAT, FP16, NARROW, figures, tables
from policy.integer import trained_with
from policy.locate import meant
from policy.quantization import FLOAT_BITS, LARGEST_SIMULATED_BITS, Scheme
from policy.simulated import HALF_BITS, WEIGHTS_ONLY, Widths
from policy.spec import PolicySpec
from train.suites.names import Suite, resolve

SCHEMES = (Scheme.QUARL.value, Scheme.QUARL_RELEASED.value, Scheme.SYMMETRIC.value)
PAPERS: Condition = {"scheme": Scheme.QUARL.value, "activations": FLOAT}
"""The paper's quantizer on the weights alone."""
SERIES: tuple[Condition, ...] = ({"scheme": SCHEMES[0]}, PAPERS, {"scheme": SCHEMES[1]}, {"scheme": SCHEMES[2]})
WIDTHS = (*NARROW, 10, 12, 14, HALF_BITS, FP16, 20, 24, 28, FLOAT_BITS)
SLOW = (Suite.BOX2D, Suite.PYBULLET, Suite.MUJOCO, Suite.DM_CONTROL)
"""Whose simulators make all widths take an hour: they get fewer widths, schemes and episodes; Atari games fewer yet."""
SERIES_OF = {Suite.ATARI: (PAPERS,), **dict.fromkeys(SLOW, (PAPERS, SERIES[3]))}


def options(parser: argparse.ArgumentParser) -> None:
    """--scheme, --bits, --weights-only, --activation-bits, --input-bits."""
    hidden = command_line.bits(2, LARGEST_SIMULATED_BITS)
    parser.add_argument("--scheme", choices=SCHEMES, help="default: quarl with and without activations, and the others")
    parser.add_argument("--bits", type=widths, metavar="2-8,fp16", help="default: 2 … 32; of slow simulators 2 … 8")
    parser.add_argument("--weights-only", action="store_true", help="leave activations and observation float")
    parser.add_argument("--activation-bits", type=hidden, metavar="N", help="of hidden layers, at every width")
    parser.add_argument("--input-bits", type=hidden, metavar="N", help="of the observation, at every width")


def widths(text: str) -> tuple[int | str, ...]:
    """``2-8,fp16,32``; a range is every whole number in it."""
    names = command_line.words(text)
    numbers = [name for name in names if name != FP16]
    found = command_line.bits(2, FLOAT_BITS)(",".join(numbers)) if numbers else ()
    return (*found, *([FP16] if FP16 in names else []))


def suite_of(subject: str) -> Suite:
    """Where a bundle's task comes from."""
    return resolve(str(load(subject).spec.provenance["task"])).suite


def series_asked(arguments: argparse.Namespace) -> list[Condition]:
    """Schemes with what their activations and observation are asked to have; none where the options say nothing.

    Raises:
        UsageError: the options contradict each other.
    """
    activations, observation = arguments.activation_bits, arguments.input_bits
    if not (arguments.scheme or arguments.weights_only or activations or observation):
        return []
    scheme = arguments.scheme or SCHEMES[0]
    if arguments.weights_only and (activations or observation):
        raise command_line.UsageError("--weights-only leaves activations and observation float; give no bits of them.")
    if scheme == Scheme.QUARL_RELEASED.value and (activations or observation):
        raise command_line.UsageError("the released script quantizes weights only.", "--scheme quarl, or symmetric")
    if arguments.weights_only and Scheme(scheme) not in WEIGHTS_ONLY:
        activations = (FLOAT,)
    each = [
        {"scheme": scheme, "activations": a, "observation": o}
        for a in activations or (None,)
        for o in observation or (None,)
    ]
    return [{name: value for name, value in condition.items() if value is not None} for condition in each]


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, fp16, and each scheme at each width; 32 bits with everything else in float are fp32."""
    suite = suite_of(subject)
    few = suite in SERIES_OF
    asked = arguments.bits or (NARROW if few else WIDTHS)
    half: list[Condition] = [{"scheme": FP16, "bits": HALF_BITS}] if FP16 in asked else []
    return [
        {},
        *half,
        *(
            {**series, "bits": bits}
            for series in series_asked(arguments) or SERIES_OF.get(suite, SERIES)
            for bits in asked
            if bits != FP16 and (bits != FLOAT_BITS or set(series.values()) - {series["scheme"], FLOAT})
        ),
    ]


def episodes_of(arguments: argparse.Namespace, subject: str) -> Episodes:
    """A hundred of each of the paper's seeds; twenty where they take seconds, of one seed where they take minutes."""
    suite = suite_of(subject)
    seeds = (0,) if suite is Suite.ATARI else SEEDS
    return Episodes(arguments.seeds or seeds, arguments.episodes or (20 if suite in SERIES_OF else 100))


def widths_of(asked: Condition, spec: PolicySpec) -> Widths:
    """What a condition means.

    Activations: in ``quarl`` as many bits as the weights; ``quarl-released`` leaves them float, as its script does; in
    ``symmetric`` 8 bits where the weights have fewer, as the artifacts on devices (or as many as the policy was trained
    with, at its own width), else as many as the weights. 32 leaves everything float, fp16 the activations.

    Raises:
        QuantizationError: the widths cannot be.
    """
    scheme, bits = Scheme(asked["scheme"]), asked["bits"]
    activations = asked.get("activations")
    if activations is None and bits <= LARGEST_SIMULATED_BITS and scheme not in WEIGHTS_ONLY:
        activations = bits
        if scheme is Scheme.SYMMETRIC and trained_with(spec, bits) is None:
            activations = max(DEVICE_ACTIVATION_BITS, bits)
    return Widths(scheme, bits, None if activations == FLOAT else activations, asked.get("observation"))


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """The policy at these widths, and which ones its activations and observation have."""
    bundle, task = open_bundle(subject)
    widths = widths_of(asked, bundle.spec) if asked else None
    decide, measures = quantized(bundle, widths)
    measures = {**measures, "task": task.name}
    if widths is not None:
        measures |= {"activation_bits": widths.activation_bits, "observation_bits": widths.observation_bits}
    if (trained := bundle.spec.quantization) is not None:
        measures["trained_bits"] = trained.bits
    yield from fly(task, decide, episodes, measures)


EXPERIMENT = Experiment(
    name="sweep",
    question="how few bits does a policy take?",
    factors=("scheme", "activations", "observation", "bits"),
    subjects=("I", "II", "III", *BENCHMARK, "pong-dqn", "pong-ppo"),
    grid=grid,
    measure=measure,
    identity=weights_hash,
    episodes=episodes_of,
    tables=tables,
    figures=figures,
    about=lambda name: meant(open_bundle(name)[0]),
    options=options,
)
