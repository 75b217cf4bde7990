"""How few bits can a policy take? Post-training quantization to every width, the same episodes with each.

    python -m bench.study sweep cartpole-dqn
    python -m bench.study sweep II --scheme symmetric --bits 2-8 --seeds 0,2,4 --episodes 100
    python -m bench.study sweep zoo/I --scheme quarl-released --keep
    python -m bench.study sweep I --bits 32 --activation-bits 3

--scheme quarl (default) is the paper's affine quantizer, per tensor, of weights and activations; quarl-released is what
its released script computes instead (weights only); symmetric is what devices run, per output channel, with activations
of 8 bits where the weights have fewer. The observation and the outputs keep 8 bits or more (policy/simulated.py).
Quantization is simulated in float; the last column says what a device would execute. --keep stores the answer in
results/study/, from where bench.study.sweep.plot draws it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.text import estimate as bracketed

if TYPE_CHECKING:
    from bench.report.tables import Table
    from bench.study.sweep.flying import Asked
    from bench.study.sweep.store import Outcome, Sweep, Width
    from policy.bundle import Bundle
    from train.suites.task import Task

SCHEMES = ("quarl", "quarl-released", "symmetric")  # those of policy.quantization, by value: --help loads no numpy
WIDTHS = ("2", "3", "4", "5", "6", "7", "8", "10", "12", "14", "16", "fp16", "20", "24", "28", "32")
SEEDS = (0, 2, 4)  # the paper's
EPISODES = 100
FEWEST, MOST = 2, 32


def main(argv: Sequence[str] | None = None) -> int:
    """Fly, print, keep."""
    parser = command_line.parser(__doc__, "-m bench.study sweep")
    parser.add_argument("bundle", help="a folder, or a name such as II, cartpole-dqn")
    parser.add_argument("--scheme", choices=SCHEMES, default="quarl", help="default: %(default)s")
    parser.add_argument(
        "--bits", type=read_widths, default=WIDTHS, metavar="2-8,fp16", help=f"default: {','.join(WIDTHS)}"
    )
    parser.add_argument("--weights-only", action="store_true", help="leave activations and observation float")
    parser.add_argument("--activation-bits", type=read_bits, metavar="N", help="of hidden layers, at every width")
    parser.add_argument("--input-bits", type=read_bits, metavar="N", help="of the observation, at every width")
    parser.add_argument("--seeds", type=read_seeds, default=SEEDS, metavar="0,2,4", help="default: 0,2,4")
    parser.add_argument(
        "--episodes",
        type=command_line.positive,
        default=EPISODES,
        help="of each seed and preset (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write that JSON document to a file")
    parser.add_argument("--keep", action="store_true", help="store the answer in results/study/")
    arguments = parser.parse_args(argv)
    if arguments.weights_only and (arguments.activation_bits or arguments.input_bits):
        parser.error("--weights-only leaves activations and observation float; leave it out to give their bits")
    if arguments.scheme == "quarl-released" and (arguments.activation_bits or arguments.input_bits):
        parser.error("the released script quantizes weights only; take --scheme quarl or symmetric for activations")
    return command_line.guarded(_run, arguments)


def read_widths(text: str) -> tuple[str, ...]:
    """``2-8,fp16,32`` as names of widths; a range is every whole number in it."""
    names: list[str] = []
    for word in command_line.words(text):
        first, dash, last = word.partition("-")
        if word == "fp16":
            names.append(word)
        elif first.isdecimal() and (last.isdecimal() if dash else True):
            ends = int(first), int(last) if dash else int(first)
            if not FEWEST <= ends[0] <= ends[1] <= MOST:
                raise argparse.ArgumentTypeError(f"{word!r} is no width; allowed are {FEWEST} … {MOST}, and fp16")
            names += [str(bits) for bits in range(ends[0], ends[1] + 1)]
        else:
            raise argparse.ArgumentTypeError(f"{word!r} is no width; type 2-32, or 2,4,8,fp16")
    return tuple(dict.fromkeys(names))


def read_bits(text: str) -> int:
    """One width of activations."""
    if not text.isdecimal() or not FEWEST <= int(text) < MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no width of activations; allowed are {FEWEST} … {MOST - 1}")
    return int(text)


def read_seeds(text: str) -> tuple[int, ...]:
    """``0,2,4`` as different seeds."""
    seeds = tuple(command_line.not_negative(word) for word in command_line.words(text))
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice: its episodes would be counted twice")
    return seeds


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.study.sweep import store as study_store
    from bench.study.sweep.flying import Asked
    from policy.files import write_atomically
    from policy.quantization import Scheme
    from train.__main__ import quiet_libraries

    quiet_libraries()
    bundle, task = open_bundle(arguments.bundle)
    if arguments.keep:
        check_keeping(bundle, "sweep")
    scheme = Scheme(arguments.scheme)
    asked = Asked(scheme, arguments.weights_only, arguments.activation_bits, arguments.input_bits)
    done = sweep(bundle, task, arguments.bits, asked, arguments.seeds, arguments.episodes)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.output, done.to_json().encode())
    if arguments.keep:
        command_line.say(f"kept: {study_store.write_sweep(done)}")
    if arguments.json:
        print(json.dumps({"ok": True, **json.loads(done.to_json())}, ensure_ascii=False))
    else:
        for table in tables(done):
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def open_bundle(name: str) -> tuple[Bundle, Task]:
    """A bundle and the task that it was trained on.

    Raises:
        UsageError: there is no such bundle, or its task is not known or not installed here.
    """
    from policy.errors import PolicyError
    from policy.locate import working_bundle
    from train.evaluate import check_task, task_options, trained_on
    from train.suites.errors import TaskError
    from train.suites.make import make_task

    try:
        bundle = working_bundle(name)
        task_name = trained_on(bundle.spec)
        task = make_task(task_name, options=task_options(bundle.spec, task_name))
        check_task(bundle.spec, task)
    except (PolicyError, TaskError) as error:
        raise command_line.UsageError(str(error)) from error
    return bundle, task


def check_keeping(bundle: Bundle, command: str) -> None:
    """See that an answer does not take the place of another bundle's: they are kept by the folder's name.

    Raises:
        UsageError: the repository has a bundle of that name with other weights.
    """
    from policy.bundle import Bundle
    from policy.locate import PROJECT_ROOT, shipped_folder
    from policy.manifest import MANIFEST_FILE

    name, path, weights = bundle.path.name, bundle.path, "weights.safetensors"
    folder = shipped_folder(name)
    if folder is None or not (folder / MANIFEST_FILE).exists():  # "." and ".." are folders, too
        return
    if Bundle.load(folder).manifest.files[weights] == bundle.manifest.files[weights]:
        return
    committed = folder.relative_to(PROJECT_ROOT)
    raise command_line.UsageError(
        f"{path} has other weights than {committed}, whose kept answer --keep would replace.",
        f"leave out --keep, or give it another name: cp -r {path} {path.with_name(f'my-{name}')} && "
        f"python -m bench.study {command} {path.with_name(f'my-{name}')} --keep",
    )


def sweep(bundle: Bundle, task: Task, names: Sequence[str], asked: Asked, seeds: Sequence[int], episodes: int) -> Sweep:
    """Quantize to every width and fly; the answer.

    Raises:
        QuantizationError: the policy cannot be quantized so.
    """
    from bench.report.document import code_version
    from bench.report.machine import describe_machine
    from bench.study.sweep.flying import sweep_widths
    from bench.study.sweep.store import Sweep

    began, began_cpu = time.monotonic(), time.process_time()
    widths: list[Width] = []
    reference: tuple[Outcome, ...] = ()
    with command_line.progress_bar(f"{bundle.path.name}, {asked.scheme.value}") as progress:
        for flown, width in sweep_widths(bundle, task, names, asked, seeds, episodes):
            if width is None:
                reference = tuple(each.outcome() for each in flown)
            else:
                widths.append(width)
            progress(1 + len(widths), 1 + len(names))
    provenance = bundle.spec.provenance
    return Sweep(
        bundle=bundle.path.name,
        task=task.name,
        algorithm=str(provenance.get("algorithm", "")),
        weights_sha256=bundle.manifest.files["weights.safetensors"].sha256,
        scheme=asked.scheme,
        variant=asked.variant,
        seeds=tuple(seeds),
        episodes=episodes,
        observations=len(bundle.golden().observations),
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - began_cpu,
        machine=describe_machine().sentence(),
        code=code_version(),
        date=datetime.now(UTC).date().isoformat(),
        reference=reference,
        widths=tuple(widths),
        trained_bits=None if bundle.spec.quantization is None else bundle.spec.quantization.bits,
    )


def tables(done: Sweep) -> list[Table]:
    """The answer, a table for each preset."""
    from bench.report.tables import Table

    made = []
    for index, outcome in enumerate(done.reference):
        has_success = outcome.success is not None
        where = f", {outcome.preset}" if outcome.preset else ""
        share = (bracketed(outcome.success, 100.0),) if has_success else ()
        headers = (
            "width",
            "weights",
            "activations",
            "observation",
            *(("success, %",) if has_success else ()),
            "return",
            "minus fp32",
            "relative error, %",
            "other action, %",
        )
        rows = (
            ("fp32", "float", "float", "float", *share, bracketed(outcome.mean_return), "–", "–", "–"),
            *(_row(width, index) for width in done.widths),
        )
        notes = _notes(done, outcome.episodes) if index == len(done.reference) - 1 else ()
        made.append(Table("sweep", f"{done.bundle} on {done.task}{where}: {scheme_words(done)}", headers, rows, notes))
    return made


def _row(width: Width, index: int) -> tuple[str, ...]:
    outcome, change = width.outcomes[index], width.changes[index]
    return (
        width.name if width.name == "fp16" else f"{width.name} bits",
        str(width.weight_bits),
        *("float" if bits is None else str(bits) for bits in (width.activation_bits, width.input_bits)),
        *((bracketed(outcome.success, 100.0),) if outcome.success is not None else ()),
        bracketed(outcome.mean_return),
        bracketed(change.mean_return, 1.0, "+"),
        bracketed(change.relative_error, 1.0, "+"),
        f"{100 * width.actions_differ:.1f}",
    )


def scheme_words(done: Sweep) -> str:
    """The scheme with its variant: ``quarl, weights only``."""
    words: Mapping[str, str] = {"weights": "weights only"}
    said = [
        words.get(part, f"{'activations' if part[0] == 'a' else 'observation'} of {part[1:]} bits")
        for part in done.variant.split("-")
        if part
    ]
    return ", ".join([done.scheme.value, *said])


def _notes(done: Sweep, episodes: int) -> tuple[str, ...]:
    executions = dict.fromkeys((width.name, width.execution.words) for width in done.widths)
    by_words: dict[str, list[str]] = {}
    for name, words in executions:
        by_words.setdefault(words, []).append(name)
    seeds = ", ".join(map(str, done.seeds))
    return (
        f"Means over {episodes:,} greedy episodes ({done.episodes} of each seed {seeds}), the "
        "same at every width, with 95 % intervals; differences are paired. Relative error: (fp32 − width) / |fp32|.",
        f"Other action: share of {done.observations} golden observations on which it is not fp32's.",
        *(f"{', '.join(names)}: {words}." for words, names in by_words.items()),
        f"{done.seconds:.1f} s, of which {done.cpu_seconds:.1f} s computing, on {done.machine}.",
    )


if __name__ == "__main__":
    raise SystemExit(main())
