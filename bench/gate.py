"""The gate: what conversion lets pass, on every committed bundle, and what it does with artifacts that are wrong.

    python bench/gate.py
    python bench/gate.py --keep

Of each bundle its int8 artifact: how far from the reference an output may be on the golden observations, and how far
it acts as the trained policy. Then wrong bundles and artifacts, made here of committed ones, each tried on the reader,
the gate or the agent. Nothing is timed. --keep stores the answer in results/gate.json, from where bench/table.py makes
its tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line

if TYPE_CHECKING:
    from bench.report.tables import Table
    from convert.executor import RuntimeProcess
    from policy.bundle import Bundle
    from policy.spec import RuntimeName

PULSE, TILT = (1000.0, 2000.0), (-0.3, 0.3)
"""Bounds of a motor's pulse width, µs, and of a tilt, rad."""
NARROW = 0.03
"""Share of its distance from the mean that each observation of a narrow calibration set keeps."""


def main(argv: Sequence[str] | None = None) -> int:
    """Try, print, keep."""
    parser = answer_command.parser(__doc__, "bench/gate.py")
    return ANSWER.run(parser.parse_args(argv))


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"bundles": list(_bundles()), "wrong": list(_wrong())}


def _bundles() -> Iterator[dict[str, Any]]:
    """The int8 artifact of each committed bundle, held against its reference and the trained policy."""
    import numpy as np

    from convert.acceptance import agreement
    from convert.pipeline import build
    from policy.locate import ZOO
    from policy.manifest import MANIFEST_FILE
    from policy.spec import ArtifactFormat, Precision, output_spans

    folders = [path.parent for path in ZOO.glob(f"**/{MANIFEST_FILE}")]
    for bundle in sorted(map(_loaded, folders), key=lambda each: each.spec.name):
        spec, golden = bundle.spec, bundle.golden()
        reference = build(bundle, Precision.INT8, ArtifactFormat.TFLITE).reference
        assert reference.step is not None
        # What it was until the tolerance of each output was its own: of the widest output, where its tanh is steepest.
        heads = slice(spec.output_size)  # a recurrent policy's next states stand behind them
        apart = np.abs(reference.own[0] - reference.own[1])[:, heads].max()
        once = apart + 1.001 * reference.step[heads].max()
        outputs = golden.outputs[:, heads]
        spans = np.array(output_spans(spec, float(outputs.min()), float(outputs.max())))
        yield {
            "policy": spec.name,
            "outputs": spec.output_size,
            "discrete": spec.is_discrete,
            "vectors": len(golden.outputs),
            "before": float(once / spans.min()),
            "now": [float(share) for share in reference.tolerance[:, heads].mean(axis=0) / spans],
            "agreement": agreement(spec, reference.outputs, golden.outputs),
        }


def _loaded(folder: Path) -> Bundle:
    from policy.bundle import Bundle

    return Bundle.load(folder)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _wrong() -> Iterator[dict[str, Any]]:
    """Wrong bundles and artifacts, and what becomes of each."""
    from convert.executor import runtime_processes
    from policy.spec import RuntimeName

    with tempfile.TemporaryDirectory() as folder, runtime_processes((RuntimeName.LITERT,)) as runtimes:
        for attempt in (_other_weights, _stuck_output, _swapped_precisions, _narrow_calibration, _not_finite):
            what, before, reason = attempt(Path(folder) / attempt.__name__, runtimes)
            yield {"what": what, "before": before, "refused": reason is not None, "said": reason}


Runtimes = Mapping["RuntimeName", "RuntimeProcess"]
Tried = tuple[str, str, str | None]
"""What is wrong, what became of it before the gate, and the sentence that refuses it now; None where nothing does."""


def _other_weights(folder: Path, runtimes: Runtimes) -> Tried:
    import numpy as np

    from convert.pipeline import convert
    from policy.bundle import Bundle
    from policy.network import choose_actions, forward_float
    from policy.reading.bundle_files import WEIGHTS_FILE
    from policy.spec import ArtifactFormat, Precision

    late = _copy("I-late", folder / "late")
    bundle = _signed(_copy("I", folder / "I"), {WEIGHTS_FILE: late.data(WEIGHTS_FILE)})
    golden = bundle.golden()
    chosen = choose_actions(bundle.spec, forward_float(bundle.spec, late.weights(), golden.observations))
    share = float(np.mean(chosen == golden.actions))
    reason = [
        refusal(lambda: Bundle.load(bundle.path)),
        refusal(lambda: convert(bundle, Precision.FP32, ArtifactFormat.TFLITE, runtimes)),
    ]
    return (
        "I with the weights of I-late, hashes mended",
        f"passed, with {100 * share:.0f} % of I's actions",
        reason[0] and reason[1] and reason[0],
    )


def _stuck_output(folder: Path, runtimes: Runtimes) -> Tried:
    import numpy as np

    from convert.parity import check
    from convert.pipeline import build
    from policy.bundle_writer import write_bundle
    from policy.spec import ArtifactFormat, ContinuousHead, Precision, RuntimeName

    flown = _copy("bipedalwalker-ddpg", folder / "source")
    head = flown.spec.head
    assert isinstance(head, ContinuousHead)
    bounds = [PULSE, TILT, *zip(head.low[2:], head.high[2:], strict=True)]
    low, high = (tuple(ends) for ends in zip(*bounds, strict=True))
    spec = replace(flown.spec, head=replace(head, low=low, high=high))
    observations = flown.golden().observations
    bundle = write_bundle(folder / "walker", spec, flown.weights(), flown.calibration(), observations)
    candidate = build(bundle, Precision.INT8, ArtifactFormat.TFLITE)
    execution = runtimes[RuntimeName.LITERT].execute(spec, candidate.data, candidate.reference.observations)
    outputs = execution.outputs.copy()
    outputs[:, 1] = TILT[1]
    stuck = replace(execution, outputs=outputs, actions=outputs)
    assert candidate.reference.step is not None
    once = np.abs(candidate.reference.own[0] - candidate.reference.own[1]).max() + candidate.reference.step.max()
    error = float(np.abs(outputs - candidate.reference.outputs)[:, 1].max())
    verdict = "passed" if error <= once else "refused"
    return (
        f"a tilt of ±{TILT[1]:g} rad stuck at its limit beside a pulse width of {PULSE[0]:g} … {PULSE[1]:g} µs",
        f"{verdict}: off by {error:.2f}, allowed was {once:.3g} for both",
        refusal(lambda: check(RuntimeName.LITERT, "walker/int8.tflite", spec, stuck, candidate.reference)),
    )


def _swapped_precisions(folder: Path, runtimes: Runtimes) -> Tried:
    from convert.pipeline import convert
    from policy.bundle import Bundle
    from policy.manifest import MANIFEST_FILE
    from policy.spec import ArtifactFormat, Precision

    bundle = _copy("I", folder)
    for precision in (Precision.INT8, Precision.INT4):
        convert(bundle, precision, ArtifactFormat.TFLITE, runtimes)
    manifest = json.loads((bundle.path / MANIFEST_FILE).read_text())
    one, other = manifest["artifacts"]
    one["precision"], other["precision"] = other["precision"], one["precision"]
    (bundle.path / MANIFEST_FILE).write_text(json.dumps(manifest))
    return (
        "the precisions of int8 and int4 exchanged in the manifest",
        "served under the other's label",
        refusal(lambda: Bundle.load(bundle.path)),
    )


def _narrow_calibration(folder: Path, runtimes: Runtimes) -> Tried:
    import numpy as np

    from convert.pipeline import build, convert, judge
    from policy.bundle_writer import npz
    from policy.reading.bundle_files import CALIBRATION_FILE
    from policy.spec import ArtifactFormat, Precision

    bundle = _copy("I", folder)
    mean = np.array(bundle.spec.normaliser.mean, np.float32)
    narrow = mean + np.float32(NARROW) * (bundle.calibration() - mean)
    bundle = _signed(bundle, {CALIBRATION_FILE: npz(observations=narrow)})
    passed = refusal(lambda: judge(bundle, build(bundle, Precision.INT8, ArtifactFormat.TFLITE), runtimes)) is None
    return (
        f"I calibrated on observations {NARROW:.0%} as far from their mean as they are",
        "passed: every runtime computes these integers" if passed else "refused",
        refusal(lambda: convert(bundle, Precision.INT8, ArtifactFormat.TFLITE, runtimes)),
    )


def _not_finite(folder: Path, runtimes: Runtimes) -> Tried:
    from convert.pipeline import convert
    from policy.bundle_writer import write_bundle
    from policy.spec import ArtifactFormat, Precision

    known = _copy("I", folder / "source")
    spec = replace(known.spec, normaliser=replace(known.spec.normaliser, clip=float("inf")))
    observations = known.golden().observations
    bundle = write_bundle(folder / "open", spec, known.weights(), known.calibration(), observations)
    convert(bundle, Precision.FP32, ArtifactFormat.TFLITE, runtimes)
    load = {"op": "load", "precision": "fp32", "runtime": "litert"}
    lines = [json.dumps(load), json.dumps({"op": "act", "observation": [3e38] * spec.observation_size})]
    agent = [sys.executable, "-m", "device.agent", "--bundle", str(bundle.path)]
    answered = subprocess.run(agent, input="\n".join(lines), capture_output=True, text=True, check=True)
    loaded, reply = map(json.loads, answered.stdout.splitlines())
    if not loaded["ok"]:
        raise command_line.BenchError(f"the agent did not load the artifact: {loaded['error']['message']}")
    return (
        "I without its clip, from an observation of 3e38: NaN",
        "answered: ok, action 0",
        None if reply["ok"] else reply["error"]["message"],
    )


def refusal(attempt: Callable[[], object]) -> str | None:
    """The sentence that an attempt is refused with; None where it is not."""
    from policy.errors import PolicyError

    try:
        attempt()
    except PolicyError as error:
        return str(error).removesuffix(error.next_step).strip()
    return None


def _copy(name: str, folder: Path) -> Bundle:
    """A committed bundle, to be spoiled."""
    from policy.bundle_writer import copy_bundle
    from policy.locate import shipped_folder

    source = shipped_folder(name)
    assert source is not None
    return copy_bundle(_loaded(source), folder, "zoo")


def _signed(bundle: Bundle, contents: Mapping[str, bytes]) -> Bundle:
    """The bundle with other files and a manifest that agrees with them."""
    from policy.manifest import MANIFEST_FILE, FileRecord

    for name, data in contents.items():
        (bundle.path / name).write_bytes(data)
    records = {name: FileRecord.of(data) for name, data in contents.items()}
    manifest = replace(bundle.manifest, files={**bundle.manifest.files, **records})
    (bundle.path / MANIFEST_FILE).write_text(manifest.to_json())
    return replace(bundle, manifest=manifest)


def _tables() -> dict[str, Callable[[answer_command.Document], Table]]:
    from bench.tables.gate import BUNDLES, WRONGS

    return {pivot.name: pivot.table for pivot in (BUNDLES, WRONGS)}


ANSWER = answer_command.AnswerCommand(
    name="gate",
    command="bench/gate.py",
    ask=_ask,
    tables=_tables,
    amounts=lambda document: {(each["policy"],): each["vectors"] for each in document["bundles"]},
    unit="vectors",
    holds=lambda document: all(each["refused"] for each in document["wrong"]),
)


if __name__ == "__main__":
    raise SystemExit(main())
