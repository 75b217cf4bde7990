"""From a bundle to a folder of C: the artifact is made if it is missing, compared with the weights, tested, written."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from quarl.convert.opaque import impossible
from quarl.convert.pipeline import convert_each, missing
from quarl.convert.rebuild import check_artifact
from quarl.device.engine import building
from quarl.device.engine.engine import Engine, library, memory_needed
from quarl.policy.bundle import Bundle
from quarl.policy.errors import PolicyError
from quarl.policy.files import write_folder
from quarl.policy.locate import shorten_path
from quarl.policy.reading import ArtifactEntry
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision

TEMPLATES = Path(__file__).parent / "templates"
ENGINE = (
    "engine.h",
    "activations.h",
    "format.h",
    "cells.h",
    "floats.h",
    "records.h",
    "kernels.h",
    "norm.h",
    "team.h",
    "neon64.h",
    "engine.c",
    "plain.c",
    "neon.c",
    "x86.c",
)
GOLDEN_ROWS = 16
BYTES_OF_LINE = 24


class ExportError(PolicyError):
    """The policy cannot be written as C."""


@dataclass(frozen=True)
class Export:
    """A folder that was written.

    Attributes:
        policy, precision: what is in it.
        folder: where it is.
        artifact_bytes: constant data; memory_bytes: RAM beside the stack.
        golden_rows: observations that its test holds against the reference's outputs, and passed here.
        made: whether the bundle did not have the artifact before.
    """

    policy: str
    precision: Precision
    folder: Path
    artifact_bytes: int
    memory_bytes: int
    golden_rows: int
    made: bool


def export(bundle: Bundle, folder: Path, precision: Precision, *, accept: bool = False) -> Export:
    """Write the folder, whole or not at all, after its golden test has passed on this machine.

    Args:
        bundle: as loaded.
        folder: must not be there yet.
        precision: 8 bits or fewer, or mixed.
        accept: make the artifact also if its agreement with the policy is below the threshold.

    Raises:
        ExportError: the folder is there, or the engine does not execute this precision or this policy.
        ParityError, AcceptanceError: the artifact cannot be made.
        BundleError: the artifact is not what the weights make.
        BuildError: there is no compiler, or the test does not pass.
        OSError: the folder cannot be written.
    """
    refuse_taken(folder)
    native = ArtifactFormat.NATIVE
    if not precision.is_integer:  # its golden test compares bits, which floats have of their own on each processor
        held = ", ".join(candidate.bits_argument for candidate in Precision if candidate.is_integer)
        raise ExportError(f"--bits must be one of {held} for a policy exported as C, got {precision.value}.")
    if bundle.spec.is_discrete and not bundle.spec.is_plain_choice:
        raise ExportError(
            f"a policy exported as C must have one choice counted from 0, or continuous actions; "
            f"{bundle.spec.name!r} has {bundle.spec.head.describe()}.",
            "Use the ONNX file and choose by the logits: quarl convert --bits 32 --format onnx",
        )
    if reason := impossible(bundle.spec, native):
        raise ExportError(f"the native engine cannot execute {bundle.spec.name}: {reason}")
    jobs = missing([(bundle, precision, native)])
    convert_each(jobs, accept=accept)
    bundle = Bundle.load(bundle.path)
    entry = bundle.artifact(precision, native)
    check_artifact(bundle, entry)
    files = c_files(bundle, entry)
    test_here(files)
    try:
        write_folder(folder, files)
    except FileExistsError:
        refuse_taken(folder)
        raise
    data = bundle.artifact_data(entry)
    return Export(
        bundle.spec.name, precision, folder, len(data), memory_needed(library(), data), GOLDEN_ROWS, bool(jobs)
    )


def refuse_taken(folder: Path) -> None:
    """Raise ExportError where there is something of that name."""
    if folder.exists() or folder.is_symlink():
        raise ExportError(
            f"{shorten_path(folder)} exists already; an export is written to a new folder. Nothing was written.",
            "Type another --output-path, or remove the folder.",
        )


def c_files(bundle: Bundle, entry: ArtifactEntry) -> dict[str, bytes]:
    """Return every file of the folder by its name.

    Args:
        bundle: has the artifact.
        entry: of the artifact, native.
    """
    spec, data = bundle.spec, bundle.artifact_data(entry)
    rows = np.linspace(0, len(bundle.golden().observations) - 1, GOLDEN_ROWS).astype(int)
    values: dict[str, Any] = {
        "policy": spec.name,
        "c_name": json.dumps(spec.name),
        "precision": entry.precision.value,
        "file": entry.file,
        "sha256": entry.record.sha256,
        "size": len(data),
        "lines": [_bytes(data[begin : begin + BYTES_OF_LINE]) for begin in range(0, len(data), BYTES_OF_LINE)],
        "memory": memory_needed(library(), data),
        "observation": spec.observation_size,
        "outputs": spec.result_size,
        "states": spec.state_size,
        "initial": ", ".join(
            _float(value)
            for field in spec.observation
            if field.is_state and field.memory
            for value in field.memory.initial
        ),
        "fields": _fields(bundle),
        "discrete": spec.is_discrete,
        "what_comes_out": "the action's number" if spec.is_discrete else f"{spec.output_size} floats",
        "period": f"{spec.control_period_s!r}",
        "fallback": _fallback(spec),
        "rows": GOLDEN_ROWS,
        "golden": _golden(bundle, entry, rows),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    files = {name: (building.HERE / name).read_bytes() for name in ENGINE}
    for path in sorted(path for path in TEMPLATES.rglob("*") if path.is_file()):
        name = str(path.relative_to(TEMPLATES))
        is_template = path.suffix == ".jinja"
        text = environment.get_template(name).render(values).encode() if is_template else path.read_bytes()
        files[name.removesuffix(".jinja")] = text
    return files


def _fields(bundle: Bundle) -> list[dict[str, str]]:
    rows, begin = [], 0
    for field in bundle.spec.observation:
        end = begin + field.size - 1
        rows.append(
            {"name": field.name, "unit": field.unit, "range": f"{begin}" if begin == end else f"{begin} … {end}"}
        )
        begin = end + 1
    return rows


def _fallback(spec: PolicySpec) -> str | None:
    if not spec.fallback:
        return None
    return str(int(spec.fallback[0])) if spec.is_discrete else f"{{ {', '.join(map(_float, spec.fallback))} }}"


def _golden(bundle: Bundle, entry: ArtifactEntry, rows: np.ndarray) -> list[dict[str, object]]:
    """As this machine's engine decides: it is held to the reference by the gate, and every build of it to its bits."""
    spec, observations = bundle.spec, bundle.golden().observations
    engine = Engine(library(), bundle.artifact_data(entry), spec.observation_size, spec.result_size)
    decided = {row: (engine.decide(observations[row]), engine.outputs.tolist()) for row in rows.tolist()}
    return [
        {
            "observation": ", ".join(map(_float, observations[row])),
            "outputs": ", ".join(map(_float, outputs)),
            "decision": decision,
        }
        for row, (decision, outputs) in decided.items()
    ]


def _float(value: float) -> str:
    """Return a float32 as C reads it back to the bit."""
    return f"{float(value).hex()}f"


def _bytes(part: bytes) -> str:
    return "".join(f"{byte}," for byte in part)


def test_here(files: Mapping[str, bytes]) -> None:
    """Compile the folder's golden test for this machine, without a C library, and run it.

    Raises:
        BuildError: it does not compile, or an output is another one than the reference's.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in files.items():
            path = Path(scratch) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        program = Path(scratch) / "example"
        sources = [
            "example.c",
            "policy.c",
            "bare/linux.c",
            "bare/memory.c",
            *(name for name in ENGINE if name[-1] == "c"),
        ]
        program.write_bytes(building.compile_in_folder(Path(scratch), sources, ("-static", "-s")))
        program.chmod(0o755)
        done = subprocess.run([str(program)], check=False, timeout=600)
    if done.returncode:
        reasons = {1: "an output differs from the reference", 2: "the engine rejects the policy"}
        raise building.BuildError(
            f"the exported policy does not pass its golden test here: {reasons.get(done.returncode, done.returncode)}."
        )
