"""One artifact in one runtime, counted: qemu-aarch64 is started, and what the plugin wrote is read."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from quarl.bench.command_line import BenchError
from quarl.bench.qemu_counter.building import HERE, plugin, require_programs
from quarl.bench.qemu_counter.environment import import_path
from quarl.bench.qemu_counter.sysroot import PYTHON, sysroot
from quarl.policy.spec import Precision, RuntimeName

WARMUP, RUNS = 10, 11
CPU = "cortex-a53"
TIMEOUT_S = 900
PATHS = ("runtime_warm", "runtime_cold", "decide_warm", "decide_cold")
"""runtime: set input, invoke, read the action. decide: request line to reply line. warm: after calls of the same kind;
cold: every modelled cache emptied before the call."""
PAIR = "pair"
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class Counted:
    """What was executed between two markers; the columns of the plugin's lines, in its order.

    Attributes:
        instructions: executed.
        loads, stores: instructions that read, that write memory.
        load_bytes, store_bytes: how much.
        l1i_misses, l1d_misses: lines that were not in the modelled L1.
        l2_instruction_misses, l2_data_misses: those of them that were not in the modelled L2 either.
        l2_random_misses: those that were not in an L2 that replaces at random instead.
    """

    instructions: int
    loads: int
    stores: int
    load_bytes: int
    store_bytes: int
    l1i_misses: int
    l1d_misses: int
    l2_instruction_misses: int
    l2_data_misses: int
    l2_random_misses: int

    @property
    def l1_misses(self) -> int:
        """Lines, of instructions and data, that had to come from beyond L1."""
        return self.l1i_misses + self.l1d_misses

    @property
    def l2_misses(self) -> int:
        """Lines, of instructions and data, that had to come from DRAM."""
        return self.l2_instruction_misses + self.l2_data_misses

    def minus(self, other: Counted) -> Counted:
        """Return the difference, nowhere below zero."""
        mine, other_counts = asdict(self), asdict(other)
        return Counted(**{name: max(0, value - other_counts[name]) for name, value in mine.items()})


COLUMNS = tuple(column.name for column in fields(Counted))


@dataclass(frozen=True)
class Count:
    """The counts of one run of the guest.

    Attributes:
        paths: the medians by name (PATHS), the empty pair of markers subtracted.
        loaded, device: the agent's words on what it served, and on the machine.
        warmup, runs: calls before, and calls that the medians are of, on as many different observations.
    """

    paths: Mapping[str, Counted]
    loaded: Mapping[str, Any]
    device: Mapping[str, Any]
    warmup: int
    runs: int


def parse_lines(text: str) -> list[Counted]:
    """Read the plugin's file, a region in each line.

    Raises:
        BenchError: a line has another number of columns.
    """
    regions = []
    for line in text.splitlines():
        values = [int(word) for word in line.split()]
        if len(values) != len(COLUMNS):
            raise BenchError(
                f"a line of the plugin must have the {len(COLUMNS)} numbers {', '.join(COLUMNS)}, got {line!r}."
            )
        regions.append(Counted(*values))
    return regions


def median(rows: Sequence[Counted]) -> Counted:
    """Return the lower median of each column: a number that was counted."""
    return Counted(*(statistics.median_low([getattr(row, name) for row in rows]) for name in COLUMNS))


def summarise_counts(rows: Sequence[Counted], labels: Sequence[str]) -> tuple[dict[str, Counted], Counted]:
    """Medians by path, less those of the empty pair of markers; and the empty pair's.

    Raises:
        BenchError: the markers and the labels do not belong together.
    """
    if len(rows) != len(labels):
        raise BenchError(
            f"the numbers of counted and marked regions must be equal, got {len(rows)} and {len(labels)}.",
            code="regions_miscounted",
        )
    by_label: dict[str, list[Counted]] = {}
    for row, label in zip(rows, labels, strict=True):
        by_label.setdefault(label, []).append(row)
    pair = median(by_label[PAIR])
    return {path: median(by_label[path]).minus(pair) for path in PATHS}, pair


def count(
    bundle: Path,
    precision: Precision,
    runtime: RuntimeName,
    warmup: int = WARMUP,
    runs: int = RUNS,
    cpu: str = CPU,
) -> Count:
    """Count one decision of an artifact on an emulated processor, single-threaded.

    Args:
        bundle: a bundle's folder that has the artifact.
        precision, runtime: which.
        warmup, runs: calls before, and calls counted.
        cpu: QEMU's name of the processor.

    Raises:
        BenchError: a program is missing, or the guest failed; with its last words.
    """
    require_programs()
    root, library, path = sysroot(), plugin(), import_path(runtime)
    # Compiled modules are written in a first run that is not counted: a run that compiles lays out memory differently.
    imported = hashlib.sha256("\0".join([root.name, *(folder.name for folder in path)]).encode()).hexdigest()
    prepared = path[0].with_name(f"prepared-{imported[:12]}")
    if not prepared.exists():
        _run(root, [], path, bundle, precision, runtime, 1, 1, cpu)
        prepared.touch()
    answer, lines = _run(root, [library], path, bundle, precision, runtime, warmup, runs, cpu)
    paths, _ = summarise_counts(parse_lines(lines), answer["labels"])
    return Count(paths, answer["load"]["loaded"], answer["device"], warmup, runs)


def qemu_command(root: Path, library: Path | None, out: str = "counts", cpu: str = CPU) -> list[str]:
    """``qemu-aarch64`` with everything but the program."""
    plugged = ["-plugin", f"{library},out={out}"] if library else []
    return ["qemu-aarch64", "-cpu", cpu, "-B", "0", "-L", str(root), *plugged]


def _run(
    root: Path,
    library: Sequence[Path],
    path: Sequence[Path],
    bundle: Path,
    precision: Precision,
    runtime: RuntimeName,
    warmup: int,
    runs: int,
    cpu: str,
) -> tuple[dict[str, Any], str]:
    variables = {**_VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, path))}
    if library:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    # Files by relative names in a folder of their own: a name of another length would lie elsewhere in memory.
    with tempfile.TemporaryDirectory(prefix="quarl-count-") as here:
        command = [
            *qemu_command(root, library[0] if library else None, cpu=cpu),
            *(str(root / PYTHON), "-sS", str(HERE / "guest.py")),
            *(str(bundle.resolve()), precision.value, runtime.value, str(warmup), str(runs), "answer"),
        ]
        try:
            done = subprocess.run(
                command, cwd=here, env=variables, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"the guest did not finish within {TIMEOUT_S} s.",
                "Check this machine's load, then run the same command again.",
            ) from None
        if done.returncode != 0 or not (Path(here) / "answer").exists():
            raise BenchError(
                f"the agent in qemu-aarch64 exited with status {done.returncode}: {done.stderr.strip()[-800:]}",
                "The counter is tested with QEMU 7.2 of Debian bookworm; compare: qemu-aarch64 --version",
            )
        answer = json.loads((Path(here) / "answer").read_text())
        if not answer["load"]["ok"]:
            error = answer["load"]["error"]
            raise BenchError(f"{bundle.name} {precision.value} in {runtime.value}: {error['message']}", error["next"])
        return answer, (Path(here) / "counts").read_text() if library else ""
