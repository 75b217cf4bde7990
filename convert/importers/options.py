"""What is said of a foreign policy beside its file."""

from __future__ import annotations

import dataclasses
import math
import shlex
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from quarl import cli
from quarl.convert.importers.chain import Input
from quarl.device.agent.loop.options import read_action


def read_fields(text: str) -> tuple[Input, ...]:
    """``NAME:SIZE:UNIT,…`` as the fields of an observation.

    Raises:
        ValueError: it is not that.
    """
    fields = []
    for part in text.split(",") if text else []:
        name, _, rest = part.strip().partition(":")
        sides, _, unit = rest.partition(":")
        try:
            shape = tuple(int(side) for side in sides.split("x"))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise ValueError(f"a field must be NAME:SIZE or NAME:SIZE:UNIT, e.g. joints:12:rad, got {part!r}.")
        fields.append(Input(name, shape, unit or "1"))
    return tuple(fields)


def read_states(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``h_in=h_out,…`` as pairs of an input and an output.

    Raises:
        ValueError: it is not that.
    """
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, sign, output in pairs:
        if not (name and sign and output):
            raise ValueError(f"a state must be INPUT=OUTPUT, e.g. h_in=h_out, got {name + sign + output!r}.")
    return tuple((name, output) for name, _, output in pairs)


def read_bounds(text: str) -> tuple[tuple[float, float], ...]:
    """``LOW:HIGH,…`` as pairs.

    Raises:
        ValueError: it is not that.
    """
    bounds = []
    for part in text.split(",") if text else []:
        try:
            low, high = map(float, part.split(":"))
        except ValueError:
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"bounds must be LOW:HIGH, two numbers, the smaller one first, got {part!r}.")
        bounds.append((low, high))
    return tuple(bounds)


@Parameter(name="*")
@dataclass
class ImportOptions:
    """Import a policy.

    Attributes:
        file: a .zip of Stable-Baselines3, .onnx, .keras, .h5, a LEAPP folder; .npz, .safetensors, .pt with --spec
        name: of the bundle in artifacts/ (default: the file's)
        task: of the policy: observations are recorded there, and returns compared
        observations: array 'observations', recorded from rollouts, without a task; int8 needs them or a task
        vecnormalize: the statistics beside a Stable-Baselines3 zip
        actions: meaning of the outputs, if the file does not have it (default: as-is)
        bounds: of --actions clip or scale: one pair, or one for each output, by commas
        spec: of a plain file of weights: how they are used (docs/import.md)
        output: of an ONNX graph or a Keras model with several outputs: the one that acts
        states: of an ONNX graph: inputs that are states, with the outputs that replace them
        fields: the observation; a size is 3 or 84x84x4
        range: that an element takes beyond the recorded observations, and int8 follows; repeatable
        period: between two decisions (default: the task's, the file's, or 0.02)
        delay: from observation to effect, as it was trained with
        fallback: action of the robot when none can be computed; a loop needs one (quarl serve)
        golden: 'observations' and 'outputs' of the original, to compare with
        episodes: with --task: N of the original and of each artifact; 0: none
        max_episode_steps: with --task: truncate longer episodes (default: as registered, or 10,000)
        output_path: of the bundle (default: artifacts/NAME)
        replace: overwrite an existing bundle
        dry_run: read, compare and print; write nothing
        json: print one JSON document
    """

    file: Path
    _: KW_ONLY
    name: str | None = None
    task: Annotated[str | None, Parameter(metavar="ID")] = None
    observations: Annotated[Path | None, Parameter(metavar="NPZ")] = None
    vecnormalize: Annotated[Path | None, Parameter(metavar="PKL")] = None
    actions: Literal["clip", "scale", "as-is", "discrete"] | None = None
    bounds: Annotated[
        tuple[tuple[float, float], ...], cli.reads(read_bounds, "LOW:HIGH", allow_leading_hyphen=True)
    ] = ()
    spec: Annotated[Path | None, Parameter(metavar="JSON")] = None
    output: str | None = None
    states: Annotated[tuple[tuple[str, str], ...], cli.reads(read_states, "IN=OUT,…")] = ()
    fields: Annotated[tuple[Input, ...], cli.reads(read_fields, "NAME:SIZE:UNIT,…")] = ()
    range: Annotated[
        tuple[tuple[int, float, float], ...], Parameter(metavar="ELEMENT LOW HIGH", allow_leading_hyphen=True)
    ] = ()
    period: Annotated[float | None, Parameter(metavar="SECONDS")] = None
    delay: Annotated[float, Parameter(metavar="SECONDS")] = 0.0
    fallback: Annotated[tuple[float, ...], cli.reads(read_action, "ACTION", allow_leading_hyphen=True)] = ()
    golden: Annotated[Path | None, Parameter(metavar="NPZ")] = None
    episodes: int = 20
    max_episode_steps: PositiveInt | None = None
    output_path: Annotated[Path | None, Parameter(metavar="FOLDER")] = None
    replace: bool = False
    dry_run: bool = False
    json: bool = False

    def to_command(self) -> str:
        """Return the command that says the same."""
        words = ["quarl", "import", str(self.file)]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "range":
                words += [word for ends in value for word in ("--range", *map(str, ends))]
                continue
            if field.name == "fields":
                value = ",".join(f"{part.name}:{'x'.join(map(str, part.shape))}:{part.unit}" for part in value)
            elif field.name == "states":
                value = ",".join(map("=".join, value))
            elif field.name == "bounds":
                value = ",".join(f"{low:g}:{high:g}" for low, high in value)
            words += [f"--{field.name.replace('_', '-')}", *[str(value)] * (value is not True)]
        return shlex.join(words)
