"""``quarl train``: train a policy and write its bundle.

The same command again goes on with a run that was interrupted, and trains again once it has ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.policy.console import heartbeat
from quarl.policy.places import ARTIFACTS
from quarl.train.methods import RECURRENT, default_method, refuse_memory, refuse_mismatch, run_method, settings_class
from quarl.train.options import RunOptions, require_task
from quarl.train.quiet import suppress_output
from quarl.train.suites.names import NAVIGATION_NAME, is_importable, resolve

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.train.runs.request import RunRequest
    from quarl.train.runs.run import Run
    from quarl.train.suites.task import Task

BEGAN = time.monotonic()
NOT_QUANTIZED = 3
TEACHER = "II"
PLACES = ("--output-path", "--address")
AWARE = "quantization-aware"
EXAMPLES = """\
  quarl train --task navigation --policy I      the case study's drone; its policies are I (default), II and III
  quarl train --task cartpole --method dqn      a word of quarl tasks, or an id of Gymnasium
  quarl train --task my_module:MyTask-v0        your own task, registered with Gymnasium in my_module.py"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(RunOptions):
    """Train a policy.

    Attributes:
        precision: bits in training: 32, or 8 … 2 with --quantization-method quantization-aware
        quantization_method: quantization-aware: the policy learns with quantized weights and activations
        quant_delay: quantization-aware: steps in float before it; up to 1: a share of all steps (default 0.5)
        workers: step the environments in N processes, for slow ones; the result is the same
        teacher: --method distill: bundle to learn from (default II)
        defaults: print the defaults of --task and --method with their source; train nothing
    """

    precision: int = 32
    quantization_method: Literal["none", "quantization-aware"] = "none"
    quant_delay: Annotated[float | None, Parameter(metavar="SHARE")] = None
    workers: Annotated[int, Parameter(metavar="N")] = 1
    teacher: str | None = None
    defaults: bool = False


def format_provenance_command(verb: str, words: Sequence[str] | None = None) -> str:
    """Return the command that provenance names: without the bundle's folder and the cluster, which are of this machine.

    Args:
        verb: which was typed.
        words: its options; default: those of this process.
    """
    typed = list(sys.argv[1:] if words is None else words)
    if typed[:1] == [verb]:
        del typed[0]
    portable_words = [
        word
        for before, word in zip(["", *typed], typed, strict=False)
        if before not in PLACES and word.partition("=")[0] not in PLACES
    ]
    return shlex.join(["quarl", verb, *portable_words])


def refuse_without(*modules: str) -> None:
    """Refuse to begin where a module is not installed, before anything is written.

    Raises:
        ModuleNotFoundError: names it.
    """
    for module in modules:
        if not is_importable(module):
            raise ModuleNotFoundError(f"{module} is not installed", name=module)


@cli.verb(left="nothing was written.")
def train(options: Options) -> int:
    """Train a policy and write its bundle; the same command resumes an interrupted run.

        quarl train --task navigation --policy I --method ppo
        quarl train --task breakout --method dqn --defaults

    Exit status: 0 trained; 1 training diverged; 2 wrong usage; 3 all steps made before the quantizers became active;
    130 interrupted (a bundle of the policy so far is beside the checkpoint; artifacts/NAME is unchanged).
    """
    typed = require_task(options.task, EXAMPLES)
    with_memory = RECURRENT if "gru-" in (options.model or "") else None
    method = options.method or with_memory or default_method(resolve(typed), options.policy)
    if options.defaults:
        from quarl.train.task_help import task_help

        print(task_help(typed, method, options.policy, options.model))
        return 0
    refuse_without("tensorflow", "tensorboard")
    from quarl.train.quantization.mixed_precision import Compute, slower_here
    from quarl.train.runs.models import DEFAULT_POLICY
    from quarl.train.runs.presets import SettingsError, load_settings
    from quarl.train.runs.results import write_result
    from quarl.train.runs.run import Run
    from quarl.train.suites.make import make_task
    from quarl.train.suites.navigation_options import with_asked

    quantization = quantization_settings(options)
    if options.teacher is not None and method != "distill":
        raise SettingsError(
            f"--teacher requires --method distill, got --method {method}. Leave --teacher out, or type --method "
            "distill."
        )
    chosen = load_settings(typed, method, options.policy or DEFAULT_POLICY)
    chosen = dataclasses.replace(chosen, task=with_asked(chosen.task, options))
    task = make_task(typed, options.preset, chosen.task, options.workers)
    refuse_mismatch(method, task)
    if task.has_image:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow loads: its convolutions are 1.7 times as fast
    request, settings = make_request(options, method, chosen, task, quantization)
    request = dataclasses.replace(request, command=format_provenance_command("train"))
    alive = nullcontext() if options.quiet else heartbeat()
    with alive, Run(request, task, BEGAN) as run:
        if (warning := slower_here(Compute(getattr(settings, "compute", "float32")))) is not None:
            run.progress.say(warning)
        trained = run_method(method, run, settings, options.teacher or TEACHER)
        bundle = write_result(run, trained, chosen.source)
        run.progress.say(
            f"{bundle.path}: {trained.steps:,} steps, {run.outcome}; {run.wall_s:.0f} s, {run.cpu_s:.0f} CPU-s. "
            + next_step(run, bundle),
            always=run.was_interrupted,
        )
        if run.was_interrupted:
            return cli.EXIT_INTERRUPTED
        if quantization and trained.policy.quantization is None:
            print(never_quantized(settings, request.steps, trained.steps), file=sys.stderr)
            return NOT_QUANTIZED if trained.steps >= request.steps else 0  # one that was stopped may be resumed
        return 0


def next_step(run: Run, bundle: Bundle) -> str:
    """Return what to type after a run that wrote this bundle."""
    if run.was_interrupted:
        return f"{run.unchanged_notice[0].upper()}{run.unchanged_notice[1:]}. To go on, type the same command again."
    from quarl.policy.locate import shorten_path

    return f"Next: quarl evaluate --input-path {shlex.quote(str(shorten_path(bundle.path)))}"


def never_quantized(settings: Any, bits: int, made: int) -> str:
    """Return what to say of a run that was to learn with quantizers and ended before they became active."""
    return (
        f"The policy never learned with quantizers: they become active at the first iteration that begins after "
        f"{settings.delay_steps(bits):,} steps, and the run ended with {made:,}. What was written is a float policy. "
        f"Go on with --resume, or type more --steps, or a smaller --quant-delay than {settings.quant_delay:g}."
    )


def make_request(
    options: RunOptions,
    method: str,
    found: Any,
    task: Task,
    quantization: dict[str, Any],
    more: Mapping[str, Any] | None = None,
) -> tuple[RunRequest, Any]:
    """Return the run that the options and the settings file (``found``) describe, and the algorithm's settings.

    ``quantization`` is what :func:`quantization_settings` gives; ``more`` are settings beside the algorithm's own that
    a checkpoint must agree on.
    """
    from quarl.train.runs import presets
    from quarl.train.runs.models import choose_network
    from quarl.train.runs.request import RunRequest

    refuse_unusable(options, task)
    name, network = choose_network(task, options.policy, options.model, options.layer_norm, found.network)
    refuse_memory(method, network)
    with suppress_output():  # TensorFlow loads here, if it was not yet
        kind = settings_class(method)
    known = {part.name for part in dataclasses.fields(kind)}
    overrides = presets.parse_overrides(options.set)
    if options.mixed_precision is not None:
        overrides["compute"] = parse_mixed_precision(options.mixed_precision, method, known)
    in_16_bits = options.mixed_precision is not None and overrides["compute"] != "float32"
    if found.settings.get("engine") == "numpy" and (in_16_bits or network.layer_norm):
        overrides.setdefault("engine", "tensorflow")  # numpy's gradients know plain perceptrons in float32 only
    settings = presets.build(kind, {**found.settings, **quantization, **overrides})
    steps = options.steps or found.steps
    presets.check_run(settings, steps, task.is_image)
    evaluate_every = options.evaluate_every or found.evaluate_every or max(steps // presets.DEFAULT_EVALUATIONS, 1)
    values = {**dataclasses.asdict(settings), "preset": options.preset, "task": found.task, **(more or {})}
    unchanged = ("seed", "resume", "fresh", "minutes", "stop_at_success", "stop_at_return", "stop_preset", "quiet")
    request = RunRequest(
        task=task.name,
        policy=name,
        method=method,
        network=network,
        steps=steps,
        output_path=options.output_path or default_output(options, name, method, quantization),
        evaluate_every=evaluate_every,
        evaluate_episodes=options.evaluate_episodes or found.evaluate_episodes,
        final_episodes=options.final_episodes or found.final_episodes,
        settings=json.loads(json.dumps(values)),
        **{option: getattr(options, option) for option in unchanged},
    )
    return request, settings


def refuse_unusable(options: RunOptions, task: Task) -> None:
    """Refuse options that could not mean anything in this run.

    Raises:
        SettingsError: says which.
    """
    from quarl.train.runs.presets import SettingsError

    if options.resume and options.fresh:
        raise SettingsError("--resume and --fresh exclude each other. Leave one of them out.")
    if options.stop_preset and options.stop_preset not in task.presets:
        presets = ", ".join(preset for preset in task.presets if preset)
        known = f"choose one it is evaluated on: {presets}" if presets else "leave it out"
        raise SettingsError(f"--stop-preset must be a preset of {task.name}, got {options.stop_preset}; {known}.")


def parse_mixed_precision(text: str, method: str, settings: set[str]) -> str:
    """Return the value of the setting ``compute`` for ``--mixed-precision``, where the method's settings have one.

    Raises:
        SettingsError: the method has no such setting, or the type is not known.
    """
    from quarl.train.quantization.mixed_precision import parse_compute
    from quarl.train.runs.presets import SettingsError

    if "compute" not in settings:
        raise SettingsError(
            f"--method {method} trains in float32 only, got --mixed-precision {text}. Leave --mixed-precision out."
        )
    try:
        return parse_compute(text).value
    except ValueError as error:
        raise SettingsError(f"--mixed-precision {text}: {error}") from error


def quantization_settings(options: Options) -> dict[str, Any]:
    """Return the settings that ``--precision``, ``--quantization-method`` and ``--quant-delay`` stand for; empty for 32
    bits.

    Raises:
        SettingsError: they do not go together; says what to type.
    """
    from quarl.train.runs.presets import SettingsError

    bits, method, delay = options.precision, options.quantization_method, options.quant_delay
    if method == AWARE:
        if bits == 32:
            raise SettingsError(f"--quantization-method {method} requires a bit width. Type --precision 8 (or 7 … 2).")
        return {"quantization_bits": bits, **({} if delay is None else {"quant_delay": delay})}
    if bits != 32:
        raise SettingsError(
            f"--precision {bits} requires --quantization-method. Type --quantization-method {AWARE} to train with "
            f"quantizers, or train with --precision 32 and quantize afterwards: quarl convert --bits {bits} --policy "
            "NAME"
        )
    if delay is not None:
        raise SettingsError(
            "--quant-delay requires --quantization-method quantization-aware. Leave --quant-delay out, or add that."
        )
    return {}


def default_output(options: RunOptions, network: str, method: str, quantization: Mapping[str, Any]) -> Path:
    """artifacts/POLICY for the case study's task, else artifacts/WORD-METHOD, with the network where one was named."""
    name = resolve(options.task or "")
    parts = [network]
    if name != NAVIGATION_NAME:
        parts = [name.short_name, method, *([network] if options.policy or options.model else [])]
    parts += [f"looks-{options.history_length}"] * ((options.history_length or 1) > 1)
    parts += [*["late"] * (options.command_latency is not None), *["curriculum"] * options.curriculum]
    if quantization:
        parts.append(f"qat{quantization['quantization_bits']}")
    return ARTIFACTS / "-".join(parts).replace(",", "-")


main = cli.of("train")

if __name__ == "__main__":
    raise SystemExit(main())
