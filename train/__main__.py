"""``python -m train``: train a policy and write its bundle.

    python -m train --task navigation --policy I --method ppo
    python -m train --task cartpole --method dqn
    python -m train --task breakout --method dqn --help      defaults of this task and method, with their source
    python -m train.list                                     the paper's tasks and methods, and their state

The same command again goes on with a run that was interrupted, and trains anew once it has ended. Exit codes: 0
trained; 1 training diverged; 2 wrong usage; 3 all steps made before the quantizers became active; 130 interrupted (a
bundle of what was learned lies beside the checkpoint; artifacts/NAME stays as it was).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.policy import interruption
from quarl.policy.heartbeat import heartbeat
from quarl.policy.hints import Parser, as_typed, make_room
from quarl.policy.places import ARTIFACTS
from quarl.policy.project_python import install_hint
from quarl.train.methods import (
    METHODS,
    RECURRENT,
    default_method,
    refuse_memory,
    refuse_mismatch,
    run_method,
    settings_class,
)
from quarl.train.networks.policies import POLICIES
from quarl.train.quiet import silenced
from quarl.train.suites.names import NAVIGATION_NAME, found, resolve

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.train.runs.request import RunRequest
    from quarl.train.runs.run import Run
    from quarl.train.suites.task import Task

BEGAN = time.monotonic()
DIVERGED, USAGE, NOT_QUANTIZED, INTERRUPTED = 1, 2, 3, 130
TEACHER = "II"
QUANTIZATION_METHODS = ("none", "quantization-aware")
EXAMPLES = """\
  python -m train --task navigation --policy I      the case study's drone; its policies are I (default), II and III
  python -m train --task cartpole --method dqn      a word of python -m train.list, or an id of Gymnasium
  python -m train --task my_module:MyTask-v0        your own task, registered with Gymnasium in my_module.py"""


def parser(names: Sequence[str] = tuple(METHODS)) -> argparse.ArgumentParser:
    """The options; the same names mean the same in every command of the project.

    The help shows the methods ``names``; whoever has fewer than all refuses the others with what to type.
    """
    each = {name: METHODS[name] for name in names}
    methods = [f"  {name:8} {method.about}; {' or '.join(method.actions)} actions" for name, method in each.items()]
    options = Parser(
        prog="python -m train",
        description="Train a policy and write its bundle.",
        epilog="\n".join(["methods:", *methods, "", __doc__]),
    )
    add = options.add_argument
    add(
        "--task",
        help="navigation, a word such as breakout or halfcheetah, dm_control,walker_stand, or a Gymnasium id; "
        "module:Env-v0 imports your module first, vector,ID takes its own batch of environments",
    )
    add("--policy", choices=list(POLICIES), help="network of the case study (default I on navigation)")
    add("--model", metavar="LAYERS", help="network instead of --policy: 400,300 or nature (images)")
    add("--layer-norm", action="store_true", help="normalise every hidden fully connected layer")
    of_methods: dict[str, Any] = {"type": str.lower, "choices": list(METHODS), "metavar": f"{{{','.join(names)}}}"}
    add("--method", **of_methods, help="algorithm (default: the first with tuned settings)")
    add("--preset", help="navigation: arena to train on (default: the settings file's mixture)")
    add(
        "--command-latency",
        metavar="SECONDS",
        help="navigation: commands take effect so late in training: 0.2, 0.05,0.4 (each episode one between) or a file "
        "that bench/latency.py --json printed; judged without",
    )
    add(
        "--curriculum",
        action="store_true",
        help="navigation: near goals first; the next of four zones opens when 30 %% of the last 1000 episodes "
        "succeeded; judged on all goals",
    )
    add("--looks", type=int, help="the policy sees its last so many observations (default 1: no memory)")
    add("--steps", type=int, help="environment steps in all (default: the settings file's)")
    add("--precision", type=int, default=32, help="bits in training: 32 (default), or 8 … 2 with …")
    add(
        "--quantization-method",
        choices=QUANTIZATION_METHODS,
        default=QUANTIZATION_METHODS[0],
        help="… quantization-aware: the policy learns with quantized weights and activations (default none)",
    )
    add(
        "--quant-delay",
        type=float,
        metavar="SHARE",
        help="quantization-aware: so long in floats first; up to 1 a share of all steps, else steps (default 0.5)",
    )
    add(
        "--mixed-precision",
        metavar="TYPE",
        help="compute the networks in bfloat16 or float16 while training, with float32 master weights",
    )
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="step the environments in so many processes, for slow ones; the result is the same (default 1)",
    )
    add("--seed", type=int, default=0, help="everything random follows from it (default 0)")
    add("--output-path", type=Path, help="folder of the bundle (default artifacts/I, artifacts/cartpole-dqn)")
    add(
        "--resume",
        action="store_true",
        help="go on from the checkpoint of the same run, even if it has ended; another --steps is noted in the bundle",
    )
    add("--fresh", action="store_true", help="begin anew, even if the last run was interrupted")
    add("--minutes", type=float, help="stop after so many minutes, whatever the steps (with --resume: so many more)")
    add("--stop-at-success", type=float, metavar="SHARE", help="stop when the greedy success reaches it")
    add("--stop-at-return", type=float, metavar="RETURN", help="stop when the mean greedy return reaches it")
    add("--stop-preset", default="", help="arena on which the two are judged (default: trained on)")
    add("--evaluate-every", type=int, help="steps between two greedy evaluations")
    add("--evaluate-episodes", type=int, help="episodes of each")
    add("--final-episodes", type=int, help="episodes of the last evaluation, kept in the bundle")
    add("--teacher", help=f"--method distill: bundle to learn from (default {TEACHER})")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    add("--quiet", action="store_true", help="show no progress")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(words) and any(word.startswith("--task") for word in words):
        return show_task_help([word for word in words if word not in ("-h", "--help")])
    arguments = parser().parse_args(words)
    if arguments.task is None:
        return refuse_no_task(EXAMPLES)
    quiet_libraries()
    arguments.command = recorded("train", words)
    return answered(lambda: run_training(arguments), arguments.output_path)


def recorded(module: str, words: Sequence[str]) -> str:
    """The command that provenance names: without the bundle's folder and the cluster, which are of this machine."""
    places = argparse.ArgumentParser(add_help=False)  # takes abbreviations, as the command does
    places.add_argument("--output-path")
    places.add_argument("--address")
    return shlex.join(["python", "-m", module, *places.parse_known_args(words)[1]])


def refuse_no_task(examples: str) -> int:
    """Say what can be typed, since nothing is trained by default; returns the exit code."""
    print(as_typed(f"error: which task? Add --task; for example:\n\n{examples}"), file=sys.stderr)
    return USAGE


def answered(train: Callable[[], int], output_path: Path | None) -> int:
    """The exit code of ``train``, with one line for what went wrong; ``output_path`` is the bundle's, as typed."""
    from quarl.policy.errors import PolicyError
    from quarl.train.runs.checkpoint import CheckpointError
    from quarl.train.runs.presets import SettingsError
    from quarl.train.runs.run import DivergenceError
    from quarl.train.suites.errors import TaskError

    for module in ("tensorflow", "tensorboard"):
        if not found(module):  # before anything is written
            print(f"error: {install_hint(module)}", file=sys.stderr)
            return USAGE
    try:
        return train()
    except DivergenceError as error:
        print(as_typed(f"error: {error}"), file=sys.stderr)
        return DIVERGED
    except (SettingsError, TaskError, CheckpointError, PolicyError) as error:
        print(as_typed(f"error: {error}"), file=sys.stderr)
        return USAGE
    except OSError as error:
        where, what = error.filename or output_path or "the output", make_room(error, "Type --output-path FOLDER.")
        print(f"error: {where} cannot be written: {error.strerror}. {what}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as error:
        print(str(error) or "interrupted before training began; nothing was written.", file=sys.stderr)
        return INTERRUPTED


def quiet_libraries() -> None:
    """Set one BLAS thread (matrices are small, the update has its own) and no banners, before libraries load."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # the same numbers whatever the CPU offers oneDNN


def show_task_help(words: list[str]) -> int:
    """Print the defaults of the task and method that the other options name; returns the exit code."""
    arguments = parser().parse_args(words)
    from quarl.train.suites.errors import TaskError
    from quarl.train.task_help import task_help

    method = arguments.method or default_method(resolve(arguments.task), arguments.policy)
    try:
        print(as_typed(task_help(arguments.task, method, arguments.policy, arguments.model)))
    except (TaskError, ValueError) as error:
        print(as_typed(f"error: {error}"), file=sys.stderr)
        return USAGE
    return 0


def run_training(arguments: argparse.Namespace) -> int:
    """Train as requested and write the bundle."""
    from quarl.train.quantization.mixed_precision import Compute, slower_here
    from quarl.train.runs.models import DEFAULT_POLICY
    from quarl.train.runs.presets import load_settings
    from quarl.train.runs.results import write_result
    from quarl.train.runs.run import Run
    from quarl.train.suites.make import make_task
    from quarl.train.suites.navigation_options import with_asked

    quantization = quantization_settings(arguments)
    with_memory = RECURRENT if "gru-" in (arguments.model or "") else None
    method = arguments.method or with_memory or default_method(resolve(arguments.task), arguments.policy)
    found = load_settings(arguments.task, method, arguments.policy or DEFAULT_POLICY)
    found = dataclasses.replace(found, task=with_asked(found.task, arguments))
    task = make_task(arguments.task, arguments.preset, found.task, arguments.workers)
    refuse_mismatch(method, task)
    if task.has_image:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow loads: its convolutions are 1.7 times as fast
    request, settings = make_request(arguments, method, found, task, quantization)
    alive = nullcontext() if arguments.quiet else heartbeat()
    with interruption.interruptible(), alive, Run(request, task, BEGAN) as run:
        if (warning := slower_here(Compute(getattr(settings, "compute", "float32")))) is not None:
            run.progress.say(warning)
        trained = run_method(method, run, settings, arguments.teacher or TEACHER)
        bundle = write_result(run, trained, found.source)
        run.progress.say(
            f"{bundle.path}: {trained.steps:,} steps, {run.outcome}; {run.wall_s:.0f} s, {run.cpu_s:.0f} CPU-s. "
            + next_step(run, bundle),
            always=run.was_interrupted,
        )
        if run.was_interrupted:
            return INTERRUPTED
        if quantization and trained.policy.quantization is None:
            print(never_quantized(settings, request.steps, trained.steps), file=sys.stderr)
            return NOT_QUANTIZED if trained.steps >= request.steps else 0  # one that was stopped may be resumed
        return 0


def next_step(run: Run, bundle: Bundle) -> str:
    """What to type after a run that wrote this bundle."""
    if run.was_interrupted:
        return f"{run.untouched[0].upper()}{run.untouched[1:]}. To go on, type the same command again."
    from quarl.policy.locate import shown

    return f"Next: python -m train.evaluate --input-path {shlex.quote(str(shown(bundle.path)))}"


def never_quantized(settings: Any, bits: int, made: int) -> str:
    """What to say of a run that was to learn with quantizers and ended before they became active."""
    return (
        f"The policy never learned with quantizers: they become active at the first iteration that begins after "
        f"{settings.delay_steps(bits):,} steps, and the run ended with {made:,}. What was written is a float policy. "
        f"Go on with --resume, or type more --steps, or a smaller --quant-delay than {settings.quant_delay:g}."
    )


def make_request(
    arguments: argparse.Namespace,
    method: str,
    found: Any,
    task: Task,
    quantization: dict[str, Any],
    more: Mapping[str, Any] | None = None,
) -> tuple[RunRequest, Any]:
    """The run that the arguments and the settings file (``found``) describe, and the algorithm's settings.

    ``quantization`` is what :func:`quantization_settings` gives; ``more`` are settings beside the algorithm's own that
    a checkpoint must agree on.
    """
    from quarl.train.runs import presets
    from quarl.train.runs.models import choose_network
    from quarl.train.runs.request import RunRequest

    for option in ("steps", "evaluate_every", "evaluate_episodes", "final_episodes"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise presets.SettingsError(f"--{option.replace('_', '-')} {value} is too few; take at least 1.")
    refuse_unusable(arguments, task, method)
    name, network = choose_network(task, arguments.policy, arguments.model, arguments.layer_norm, found.network)
    refuse_memory(method, network)
    with silenced():  # TensorFlow loads here, if it was not yet
        kind = settings_class(method)
    known = {part.name for part in dataclasses.fields(kind)}
    overrides = presets.parse_overrides(arguments.set)
    if arguments.mixed_precision is not None:
        overrides["compute"] = mixed_precision(arguments.mixed_precision, method, known)
    in_16_bits = arguments.mixed_precision is not None and overrides["compute"] != "float32"
    if found.settings.get("engine") == "numpy" and (in_16_bits or network.layer_norm):
        overrides.setdefault("engine", "tensorflow")  # numpy's gradients know plain perceptrons in float32 only
    settings = presets.build(kind, {**found.settings, **quantization, **overrides})
    steps = arguments.steps or found.steps
    presets.check_run(settings, steps, task.is_image)
    evaluate_every = arguments.evaluate_every or found.evaluate_every or max(steps // presets.DEFAULT_EVALUATIONS, 1)
    values = {**dataclasses.asdict(settings), "preset": arguments.preset, "task": found.task, **(more or {})}
    unchanged = ("seed", "resume", "fresh", "minutes", "stop_at_success", "stop_at_return", "stop_preset", "quiet")
    request = RunRequest(
        task=task.name,
        policy=name,
        method=method,
        network=network,
        steps=steps,
        output_path=arguments.output_path or default_output(arguments, name, method),
        evaluate_every=evaluate_every,
        evaluate_episodes=arguments.evaluate_episodes or found.evaluate_episodes,
        final_episodes=arguments.final_episodes or found.final_episodes,
        settings=json.loads(json.dumps(values)),
        command=getattr(arguments, "command", ""),
        **{option: getattr(arguments, option) for option in unchanged},
    )
    return request, settings


def refuse_unusable(arguments: argparse.Namespace, task: Task, method: str) -> None:
    """Refuse options that could not mean anything in this run.

    Raises:
        SettingsError: says which.
    """
    from quarl.train.runs.presets import SettingsError

    if arguments.seed < 0:
        raise SettingsError(f"--seed {arguments.seed} is negative; take 0 or more.")
    if arguments.resume and arguments.fresh:
        raise SettingsError("--resume goes on and --fresh begins anew. Leave one of them out.")
    if arguments.minutes is not None and not arguments.minutes >= 0:
        raise SettingsError(f"--minutes {arguments.minutes:g} is negative; take 0 (one iteration) or more.")
    if arguments.teacher is not None and method != "distill":
        raise SettingsError(f"--teacher means nothing to --method {method}. Leave it out, or type --method distill.")
    if arguments.stop_preset and arguments.stop_preset not in task.presets:
        judged = ", ".join(preset for preset in task.presets if preset)
        known = f"choose one it is judged on: {judged}" if judged else "leave it out"
        raise SettingsError(f"--stop-preset {arguments.stop_preset} means nothing to {task.name}; {known}.")


def mixed_precision(text: str, method: str, settings: set[str]) -> str:
    """The value of the setting ``compute`` for ``--mixed-precision``, where the method's settings have one.

    Raises:
        SettingsError: the method has no such setting, or the type is not known.
    """
    from quarl.train.quantization.mixed_precision import parse_compute
    from quarl.train.runs.presets import SettingsError

    if "compute" not in settings:
        raise SettingsError(f"--method {method} computes in float32 only. Leave --mixed-precision {text} out.")
    try:
        return parse_compute(text).value
    except ValueError as error:
        raise SettingsError(f"--mixed-precision {text}: {error}") from error


def quantization_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that ``--precision``, ``--quantization-method`` and ``--quant-delay`` stand for; empty for 32 bits.

    Raises:
        SettingsError: they do not go together; says what to type.
    """
    from quarl.train.runs.presets import SettingsError

    bits, method, delay = arguments.precision, arguments.quantization_method, arguments.quant_delay
    if method == QUANTIZATION_METHODS[1]:
        if bits == 32:
            raise SettingsError(f"--quantization-method {method} needs the bits: type --precision 8 (or 7 … 2).")
        return {"quantization_bits": bits, **({} if delay is None else {"quant_delay": delay})}
    if bits != 32:
        raise SettingsError(
            f"--precision {bits}: without more, training is done in 32 bits. Type --quantization-method "
            f"{QUANTIZATION_METHODS[1]} to learn with quantizers, or quantize what was trained with --precision 32: "
            f"make convert POLICY=NAME BITS={bits}"
        )
    if delay is not None:
        raise SettingsError("--quant-delay means nothing without --quantization-method quantization-aware.")
    return {}


def default_output(arguments: argparse.Namespace, network: str, method: str) -> Path:
    """artifacts/POLICY for the case study's task, else artifacts/WORD-METHOD, with the network where one was named."""
    name = resolve(arguments.task)
    parts = [network]
    if name != NAVIGATION_NAME:
        parts = [name.short_name, method, *([network] if arguments.policy or arguments.model else [])]
    parts += [f"looks-{arguments.looks}"] * ((arguments.looks or 1) > 1)
    parts += [*["late"] * (arguments.command_latency is not None), *["curriculum"] * arguments.curriculum]
    if arguments.precision != 32:
        parts.append(f"qat{arguments.precision}")
    return ARTIFACTS / "-".join(parts).replace(",", "-")


if __name__ == "__main__":
    sys.exit(main())
