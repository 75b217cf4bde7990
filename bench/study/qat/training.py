"""The trainings of the study of quantization-aware training: what is typed for each, and which bundle is of it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from train.runs.request import RunRequest

TRAINED = "all steps made"
LATER_SETTINGS = {"weight_decay": 0.0, "weight_clip": 0.0}  # than the first trainings that are kept; none of either
LONGEST = 1.1  # times the steps asked for: a training ends with a whole iteration


@dataclass(frozen=True)
class Cell:
    """A method on a task.

    Attributes:
        name: of the cell.
        task, method: as they are typed for training.
        policy: network of the case study; None for the settings file's.
        steps: of every training; None for the settings file's.
        episodes: flown with each policy on each preset.
        quant_delay: share of the steps that QAT learns in floats first.
    """

    name: str
    task: str
    method: str
    policy: str | None = None
    steps: int | None = None
    episodes: int = 100
    quant_delay: float = 0.5


def words_of(cell: Cell, seed: int, bits: int | None, scratch: Path) -> list[str]:
    """What is typed after ``python -m train``; ``bits`` None for the float training."""
    words = ["--task", cell.task, "--method", cell.method, "--seed", str(seed), "--quiet", "--final-episodes", "1"]
    words += ["--policy", cell.policy] if cell.policy else []
    words += ["--steps", str(cell.steps)] if cell.steps else []
    words += ["--precision", str(bits), "--quantization-method", "quantization-aware"] if bits else []
    words += ["--quant-delay", str(cell.quant_delay)] if bits else []
    name = f"{cell.name}-{f'qat{bits}' if bits else 'float'}-seed{seed}"
    return [*words, "--output-path", str(scratch / name)]


def request_of(cell: Cell, seed: int, bits: int | None, scratch: Path) -> RunRequest:
    """What that training would be, without starting it."""
    return typed(words_of(cell, seed, bits, scratch))


def typed(words: Sequence[str]) -> RunRequest:
    """The training that ``python -m train`` with these words would be; they name task and method."""
    from train.__main__ import make_request, parser, quantization_settings
    from train.runs.models import DEFAULT_POLICY
    from train.runs.presets import load_settings
    from train.suites.make import make_task

    arguments = parser().parse_args(words)
    found = load_settings(arguments.task, arguments.method, arguments.policy or DEFAULT_POLICY)
    task = make_task(arguments.task, options=found.task)
    request, _ = make_request(arguments, arguments.method, found, task, quantization_settings(arguments))
    return request


def settings_hash(request: RunRequest) -> str:
    """SHA-256 of what the trainings with quantizers of all widths and seeds of a cell share."""
    from policy.spec import network_values

    own = {"quantization_bits", *unused(request.settings)}
    shared: dict[str, Any] = {name: value for name, value in request.settings.items() if name not in own}
    shared |= {"steps of the run": request.steps, "network": network_values(request.network)}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def unused(settings: Mapping[str, Any]) -> set[str]:
    """Settings that trainings from before there were any do not name, where they mean what those did."""
    return {name for name, none in LATER_SETTINGS.items() if settings.get(name, none) == none}


def trained(cell: Cell, seed: int, bits: int | None, scratch: Path, reuse: bool) -> Bundle:
    """The bundle of a training: one that is there already where that is allowed, else trained now.

    Raises:
        BenchError: training failed, or its policy has not the quantizers that were asked for.
    """
    return bundle_of(words_of(cell, seed, bits, scratch), reuse)


def bundle_of(words: Sequence[str], reuse: bool) -> Bundle:
    """:func:`trained` for the words that are typed after ``python -m train``."""
    from bench.measuring.children import started
    from policy.bundle import Bundle
    from policy.errors import PolicyError

    request = typed(words)
    if reuse:
        try:
            there = Bundle.load(request.output_path)
        except PolicyError:
            there = None
        if there is not None and is_of(there, request):
            return there
    started([sys.executable, "-m", "train", *words])
    bundle = Bundle.load(request.output_path)
    if not is_of(bundle, request):
        raise command_line.BenchError(f"{bundle.path} is not the policy that was asked for: {_ended(bundle)}.")
    return bundle


def is_of(bundle: Bundle, request: RunRequest) -> bool:
    """Whether a bundle is what that training leaves when it made all its steps."""
    spec, asked = bundle.spec, request.settings
    said = spec.provenance
    bits = 32 if spec.quantization is None else spec.quantization.bits
    settings = {**LATER_SETTINGS, **said.get("settings", {})}
    return (
        (settings, said.get("seed"), said.get("ended")) == ({**LATER_SETTINGS, **asked}, request.seed, TRAINED)
        and request.steps <= int(said.get("steps", 0)) <= LONGEST * request.steps
        and spec.network == request.network
        and bits == asked["quantization_bits"]
    )


def _ended(bundle: Bundle) -> str:
    bits = None if bundle.spec.quantization is None else bundle.spec.quantization.bits
    said = bundle.spec.provenance
    return f"{said.get('steps')} steps, {said.get('ended')}, quantizers of {bits} bits"
