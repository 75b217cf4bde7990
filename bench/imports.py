"""Public policy files: which of them an import takes, in which form, and how far the bundle is from the original."""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.tables import Table

COLUMNS = ("id", "kind", "repository", "commit", "path", "file", "options", "export", "golden")
NAMES = "public"
WORDS = """\
Public policy files
{{ files }} files of {{ repositories }} public repositories, of {{ kinds }} kinds; \
{{ share }} % of them come in: {{ contract }} as a contract, {{ opaque }} opaque.
Apart: the largest difference of an output from the original's, as a share of the range of its outputs, near and far \
from the observations that its normaliser expects. The original is the unchanged file in onnxruntime, PyTorch or \
Stable-Baselines3; for a zip with VecNormalize, the steps that were read; for Keras, the ONNX that was compared with it.
int8: the smallest and the largest agreement with fp32 on random observations, not on rollouts. Deployed: fp32 on the \
local device, which verified it with its golden vectors.
Refused: {{ refused }}.
Measured on {{ results.machine }}; code {{ results.code }}.
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Answering):
    """What to import.

    Attributes:
        files: a tab-separated list: id, kind, repository, commit, path, file, options, export, golden
        torch: the Python that exports files of PyTorch
        deploy: also deploy one policy of each kind to the local device
    """

    files: Annotated[Path, Parameter(metavar="TSV")]
    torch: Annotated[Path, Parameter(metavar="PYTHON")] = Path(sys.executable)
    deploy: bool = False


def _ask(options: Options) -> dict[str, Any]:
    from quarl.api import Device

    with options.files.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    policies: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        device = stack.enter_context(Device("local")) if options.deploy else None
        for row in rows:
            kinds = {policy["kind"] for policy in policies if policy.get("deployed")}
            folder = Path(scratch) / row["id"]
            folder.mkdir()
            policies.append(try_import(row, options, folder, None if row["kind"] in kinds else device))
    return {"policies": policies}


def try_import(row: Mapping[str, str], options: Options, folder: Path, device: Any) -> dict[str, Any]:
    """Return what became of one file: see :data:`COLUMNS` for the row.

    ``export`` are options of ``quarl export-torch``, ``-`` where there are none, and empty for a file that needs no
    export; ``golden`` is a file of pairs that the original's own program recorded.
    """
    from quarl.policy.bundle import Bundle
    from quarl.policy.errors import PolicyError

    path = options.files.parent / row["file"]
    result: dict[str, Any] = {name: row[name] for name in COLUMNS[:5]}
    result |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "typed": _list_typed_options(row)}
    words = row["options"].split()
    words += ["--golden", str(options.files.parent / row["golden"])] if row["golden"] else []
    try:
        if row["export"]:
            path, pairs = _export(path, row["export"], options.torch, folder)
            words += ["--golden", str(pairs)]
        done = _import(path, words, folder / "floats")
        assert done.path is not None
        floats = Bundle.load(done.path)
        result |= {
            "form": "opaque" if done.spec.network.opaque else "contract",
            "by": done.proof.by,
            "near": done.proof.near / done.proof.span,
            "far": done.proof.far / done.proof.span,
        }
        result["int8"] = _int8(path, words, floats, folder)
        if device is not None:
            result["deployed"] = _deploy(device, floats)
    except PolicyError as error:
        if "form" not in result:
            result |= {"form": "refused", "code": error.code}
        result["reason"] = error.message
    return result


def _list_typed_options(row: Mapping[str, str]) -> list[str]:
    """Return the options that somebody has to type, of both commands."""
    return [word for word in f"{row['export']} {row['options']}".split() if word.startswith("--")]


def _export(path: Path, words: str, python: Path, folder: Path) -> tuple[Path, Path]:
    from quarl.convert.importers import run_export_torch
    from quarl.convert.importers.chain import ForeignError

    script, name = Path(run_export_torch.__file__).with_name("export_torch.py"), folder / "exported"
    extra_arguments = [] if words == "-" else words.split()
    done = subprocess.run(
        [str(python), str(script), str(path), "--output-path", str(name), *extra_arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ForeignError((done.stderr.strip().splitlines() or ["no message"])[0])
    return name.with_suffix(".onnx"), name.with_name("exported-pairs.npz")


def _import(path: Path, words: list[str], target: Path) -> Any:
    from quarl.convert.importers.importing import import_policy

    typed = [str(path), *words, "--name", NAMES, "--output-path", str(target), "--episodes", "0"]
    return import_policy(cli.options("import", typed))


def _int8(path: Path, words: list[str], floats: Any, folder: Path) -> float | None:
    """Return how far int8 acts as fp32 on drawn observations, calibrated on others, or None without int8."""
    import numpy as np

    from quarl.convert.pipeline import convert_all
    from quarl.policy.bundle import Bundle
    from quarl.policy.errors import QuantizationError
    from quarl.policy.spec import ArtifactFormat, Precision

    np.savez(folder / "rows.npz", observations=floats.golden().observations)
    done = _import(path, [*words, "--observations", str(folder / "rows.npz")], folder / "int8")
    try:
        (artifact,) = convert_all([Bundle.load(done.path)], [Precision.INT8], [ArtifactFormat.ONNX], accept=True)
    except QuantizationError:
        return None
    return artifact.entry.fp32_agreement


def _deploy(device: Any, bundle: Any) -> bool:
    """Deploy fp32 to the local device, which holds it to the golden vectors."""
    from quarl.api import Policy

    policy = Policy(bundle)
    policy.convert(bits=32)
    device.deploy(policy, bits=32, runtime="onnxruntime")
    return True


def imports_table(document: Mapping[str, Any]) -> Table:
    """Return what became of the files, a line for each kind: how many came in as what, and the worst of them."""
    from quarl.bench.tables import group_by, tabulate

    rows = document["policies"]
    lines = [{"kind": kind, **_cells(of)} for kind, of in group_by(rows, lambda row: row["kind"]).items()]
    forms = [row["form"] for row in rows]
    return tabulate(
        "imports",
        WORDS,
        lines,
        left=2,
        results=document,
        files=len(rows),
        repositories=len({row["repository"] for row in rows}),
        kinds=len(lines),
        share=round(100 * (1 - forms.count("refused") / len(rows))),
        contract=forms.count("contract"),
        opaque=forms.count("opaque"),
        refused=", ".join(row["id"] for row in rows if row["form"] == "refused") or "none",
    )


def _cells(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    inside = [row for row in rows if row["form"] != "refused"]
    agreements = [100 * row["int8"] for row in inside if row.get("int8") is not None]
    return {
        "to type": ", ".join(dict.fromkeys(word for row in inside for word in row["typed"])),
        "files": str(len(rows)),
        **{form: str(sum(row["form"] == form for row in rows)) for form in ("contract", "opaque", "refused")},
        "apart near": f"{max(row['near'] for row in inside):.0e}" if inside else "",
        "far": f"{max(row['far'] for row in inside):.0e}" if inside else "",
        "int8, %": f"{min(agreements):.0f} … {max(agreements):.0f}" if agreements else "",
        "deployed": "yes" if any(row.get("deployed") for row in inside) else "",
    }


def _amounts(document: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    return {(policy["id"],): 1 for policy in document["policies"]}


@heartbeat()
@cli.verb()
def imports(options: Options) -> int:
    """Try public policy files: contract, opaque or refused, and how far each bundle is from its original.

        quarl bench imports --files public/files.tsv --torch .venv-peers/bin/python
        quarl bench imports --files public/files.tsv --deploy --keep

    Each file is imported with the options of its line, compared with the original near and 5 to 40 standard deviations
    from the observations that its normaliser expects, converted to int8, and one of each kind is deployed to the local
    device. --keep stores the answer in results/imports.json.
    """
    return options.publish(
        "imports", _ask(options), lambda document: [imports_table(document)], amounts=_amounts, unit="files"
    )


main = cli.of("bench imports")

if __name__ == "__main__":
    raise SystemExit(main())
