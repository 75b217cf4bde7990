"""Do layer normalisation, weight decay or weight clipping narrow the weights, and do policies then take fewer bits?

    python -m bench.study wide --keep                              six cells, six variants, three seeds: 108 trainings
    python -m bench.study wide --cells cartpole-dqn --variants plain,clip-2 --seeds 0
    python -m bench.study wide --keep --only-missing               goes on where the last one stopped
    python -m bench.study wide --stored --update-docs              fills docs/wide-weights.md, draws its picture

For every cell and seed a policy is trained plainly and with each means, all else equal: settings file, seed, steps.
Each is then quantized after training, by QuaRL's quantizer (weights only) and as devices do (symmetric, one scale an
output channel, activations of 8 bits), to 8, 6, 4, 3 and 2 bits, and all fly the same episodes as its floats.
--keep stores each answer at once in results/study/wide-weights.json; the bundles stay in artifacts/wide/, and
--only-missing takes those that are of the same settings instead of training them again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.study.qat.command import here
from bench.study.wide.training import CELLS, VARIANTS, Cell, Variant, request_of, settings_hash, trained
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from bench.report.tables import Table
    from bench.study.older import Flown
    from bench.study.wide.store import Answer, Kernel, Quantized
    from policy.bundle import Bundle
    from train.suites.task import Task

ROOT = PROJECT_ROOT
SCRATCH = ROOT / "artifacts" / "wide"
SEEDS, EPISODES = (0, 1, 2), 100
BITS = (8, 6, 4, 3, 2)
PURPOSE = "study of wide weights"  # of the flown episodes, which are those of no training and no judging


def main(argv: Sequence[str] | None = None) -> int:
    """Train, fly, keep, print."""
    parser = command_line.parser(__doc__, "-m bench.study wide")
    cells, variants = (", ".join(each.name for each in group) for group in (CELLS, VARIANTS))
    parser.add_argument("--cells", type=read_cells, default=CELLS, metavar="NAME", help=f"several with , ({cells})")
    parser.add_argument(
        "--variants", type=read_variants, default=VARIANTS, metavar="NAME", help=f"several with , ({variants})"
    )
    parser.add_argument("--seeds", type=command_line.seeds, default=SEEDS, metavar="0,1,2", help="default: 0,1,2")
    parser.add_argument("--episodes", type=command_line.positive, default=EPISODES, help="of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="store each answer in results/study/ at once")
    parser.add_argument("--only-missing", action="store_true", help="train only what is neither kept nor trained yet")
    parser.add_argument("--stored", action="store_true", help="train nothing; print what is kept")
    parser.add_argument("--update-docs", action="store_true", help="fill docs/wide-weights.md, draw the picture")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, metavar="FOLDER", help="of bundles (artifacts/wide)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    arguments = parser.parse_args(argv)
    if arguments.update_docs and (fewer := _left_out(arguments)):
        parser.error(
            f"--update-docs fills the page with the whole study, and {' and '.join(fewer)} would leave rows out; "
            "measure with --keep, then type python -m bench.study wide --stored --update-docs"
        )
    return command_line.guarded(_run, arguments)


def _left_out(arguments: argparse.Namespace) -> list[str]:
    """Options that leave out some of what the study asks."""
    whole = {"cells": CELLS, "variants": VARIANTS, "seeds": SEEDS}
    return [
        f"--{name}" for name, all_of in whole.items() if any(each not in getattr(arguments, name) for each in all_of)
    ]


def read_cells(text: str) -> tuple[Cell, ...]:
    """``cartpole-dqn,pendulum-ppo`` as cells."""
    known = {cell.name: cell for cell in CELLS}
    return tuple(known[word] for word in _known(text, list(known), "cell"))


def read_variants(text: str) -> tuple[Variant, ...]:
    """``plain,clip-2`` as variants."""
    known = {variant.name: variant for variant in VARIANTS}
    return tuple(known[word] for word in _known(text, list(known), "variant"))


def _known(text: str, known: Sequence[str], what: str) -> list[str]:
    words = list(dict.fromkeys(command_line.words(text)))
    if unknown := [word for word in words if word not in known]:
        raise argparse.ArgumentTypeError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    return words


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.study.wide import store as wide_store
    from bench.study.wide import table as wide_table
    from train.__main__ import quiet_libraries

    quiet_libraries()
    kept = wide_store.read()
    if arguments.stored:
        found = [answer for answer in kept if _is_asked(answer, arguments)]
        if not found:
            raise command_line.BenchError("nothing of this is kept yet.", wide_store.AGAIN)
    else:
        found, failures = study(arguments, kept)
        if failures:
            raise command_line.BenchError("\n".join(failures), "add --only-missing, which goes on from here")
    tables = wide_table.tables(found)
    if arguments.update_docs:
        _update_docs(found, tables)
    if arguments.json:
        print(json.dumps({"ok": True, **json.loads(wide_store.to_json(found))}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in tables))
    else:
        for table in tables:
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def _is_asked(answer: Answer, arguments: argparse.Namespace) -> bool:
    cells, variants = ({each.name for each in group} for group in (arguments.cells, arguments.variants))
    return answer.cell in cells and answer.variant in variants


def _update_docs(answers: Sequence[Answer], tables: Sequence[Table]) -> None:
    from bench.study.command import STUDY_FIGURES
    from bench.study.wide import plot as wide_plot

    command_line.update_docs(tables)
    command_line.say("\n".join(str(file) for file in wide_plot.save_figure(answers, STUDY_FIGURES)))


def study(arguments: argparse.Namespace, kept: Sequence[Answer]) -> tuple[list[Answer], list[str]]:
    """Answer what is asked; all its answers, and what failed. A training that fails does not stop the others."""
    from bench.study.wide import store as wide_store

    answers: list[Answer] = []
    failures: list[str] = []
    here()  # the code as it is now, before it is edited beside a long run

    def done(answer: Answer) -> None:
        if arguments.keep:
            for stale in wide_store.keep(answer):
                command_line.say(f"{' '.join(map(str, stale.key))}: dropped, it is of other settings or episodes")

    for seed in arguments.seeds:  # a seed of all cells first: what there is when it is stopped is comparable
        for cell in arguments.cells:
            for variant in arguments.variants:
                known = [answer for answer in kept if answer.key == (cell.name, variant.name, seed)]
                try:
                    answers.append(answered(cell, variant, seed, known, arguments, done))
                except command_line.BenchError as error:
                    failures.append(str(error))
                    command_line.say(f"error: {error}")
    return answers, failures


def answered(
    cell: Cell,
    variant: Variant,
    seed: int,
    known: Sequence[Answer],
    arguments: argparse.Namespace,
    done: Callable[[Answer], None],
) -> Answer:
    """The answer of one training: a known one where that is allowed and good, else a new one, which ``done`` gets.

    Raises:
        BenchError: the training failed.
    """
    sha256 = settings_hash(request_of(cell, variant, seed, arguments.scratch))
    for answer in known if arguments.only_missing else []:
        if (answer.settings_sha256, answer.episodes) == (sha256, arguments.episodes):
            return answer
    bundle = trained(cell, variant, seed, arguments.scratch, arguments.only_missing)
    answer = measured(cell, variant, seed, sha256, bundle, arguments.episodes)
    done(answer)
    return answer


def measured(cell: Cell, variant: Variant, seed: int, sha256: str, bundle: Bundle, episodes: int) -> Answer:
    """How wide a policy's weights are, and what it reaches in floats and quantized, on the same episodes."""
    from bench.study.flying import float_decide, open_bundle
    from bench.study.levels import all_weights
    from bench.study.older import fly
    from bench.study.wide.store import Answer
    from train.suites.task import episode_seed

    _, task = open_bundle(str(bundle.path))
    episode = episode_seed(seed, PURPOSE)
    (reference,) = fly(task, float_decide(bundle), [episode], episodes)
    provenance, weights = bundle.spec.provenance, all_weights(bundle)
    machine, code = here()
    answer = Answer(
        cell=cell.name,
        variant=variant.name,
        seed=seed,
        task=task.name,
        method=cell.method,
        steps=int(provenance["steps"]),
        engine=str(provenance["settings"]["engine"]),
        settings_sha256=sha256,
        episodes=episodes,
        weights_sha256=bundle.manifest.files["weights.safetensors"].sha256,
        cpu_s=round(float(provenance["cpu_s"]), 1),
        kernels=kernels_of(bundle),
        low=float(weights.min()),
        high=float(weights.max()),
        deviation=float(weights.std(dtype="float64")),
        mean_return=reference.outcome().mean_return,
        quantized=quantized(bundle, task, reference, episode, episodes),
        machine=machine,
        code=code,
        date=datetime.now(UTC).date().isoformat(),
    )
    said = ", ".join(f"{each.scheme.value} {each.bits}: {each.mean_return.value:.5g}" for each in answer.quantized)
    command_line.say(
        f"{cell.name}, {variant.name}, seed {seed}: range {answer.range:.3g}, range/std {answer.ratio:.3g}, "
        f"float {answer.mean_return.value:.5g}, {said}"
    )
    return answer


def kernels_of(bundle: Bundle) -> tuple[Kernel, ...]:
    """Width of each layer's weights, in the network's order."""
    from bench.study.wide.store import Kernel
    from policy.network import layer_names

    weights, found = bundle.weights(), []
    for layer in layer_names(bundle.spec):
        kernel = weights[f"{layer}/kernel"]
        deviation = float(kernel.std(dtype="float64"))
        found.append(Kernel(layer, float(kernel.min()), float(kernel.max()), deviation, kernel.size))
    return tuple(found)


def quantized(bundle: Bundle, task: Task, reference: Flown, episode: int, episodes: int) -> tuple[Quantized, ...]:
    """The policy quantized after training by both schemes to every width, on the episodes of ``reference``."""
    from bench.study.flying import decide_with
    from bench.study.older import fly
    from bench.study.sweep import PAPERS, widths_of
    from bench.study.wide.store import Quantized
    from policy.quantization import Scheme
    from policy.simulated import simulate

    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    found = []
    for asked in (PAPERS, {"scheme": Scheme.SYMMETRIC.value}):
        for bits in BITS:
            simulated = simulate(spec, weights, calibration, widths_of({**asked, "bits": bits}, spec))
            (flown,) = fly(task, decide_with(spec, simulated), [episode], episodes)
            change = flown.change_from(reference).mean_return
            found.append(Quantized(Scheme(asked["scheme"]), bits, flown.outcome().mean_return, change))
    return tuple(found)


if __name__ == "__main__":
    raise SystemExit(main())
