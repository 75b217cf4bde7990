"""Agreement: does the same artifact choose the same action in tflite-runtime, LiteRT and onnxruntime?

    python bench/agreement.py
    python bench/agreement.py --policy III --precision int8 --observations 1000 --json

Asked on observations that each policy sees while it flies the hard preset, on this machine. Wherever the runtimes do
not all agree, the gap between the chosen actions' outputs is listed: a near-tie is a step or two of the output's scale.
--keep stores the answer in results/agreement.json, from where bench/table.py makes its table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from airlearning_envs.flights import Decide
    from bench.report.tables import Table
    from convert.executor import Execution, RuntimeProcess
    from convert.reference import Reference
    from policy.bundle import Bundle
    from policy.spec import Precision, RuntimeName

EPISODES = 250
SEED = 30


@dataclass(frozen=True)
class Disagreement:
    """One observation on which not all runtimes choose one action.

    Attributes:
        observation: its index.
        actions: chosen action by runtime.
        gap: largest difference, over the runtimes, between the outputs of the actions that were chosen.
        gap_steps: the same in steps of the output's scale; None for a float artifact.
    """

    observation: int
    actions: Mapping[str, int]
    gap: float
    gap_steps: float | None

    def sentence(self) -> str:
        """For a list of them."""
        chosen = ", ".join(f"{name} {action}" for name, action in self.actions.items())
        gap = f"{self.gap:.2g}" if self.gap_steps is None else f"{self.gap_steps:.2f} steps of the output's scale"
        return f"observation {self.observation}: {chosen}; the outputs differ by {gap}"


@dataclass(frozen=True)
class Agreement:
    """The answer for one policy and precision."""

    policy: str
    precision: str
    observations: int
    actions_chosen: int
    runtimes: Mapping[str, str]
    disagreements: tuple[Disagreement, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Fly, execute everywhere, compare, print."""
    parser = command_line.parser(__doc__, "bench/agreement.py")
    parser.add_argument("--policy", type=command_line.words, default=["I", "II", "III"], help="default: I,II,III")
    parser.add_argument(
        "--precision",
        type=command_line.read_precisions,
        default=command_line.read_precisions("fp32,fp16,int8"),
        help="default: fp32,fp16,int8",
    )
    parser.add_argument("--observations", type=command_line.positive, default=5000, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--keep", action="store_true", help="store the answer in results/agreement.json")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import store
    from bench.report import tables as rendering
    from bench.report.machine import describe_machine
    from convert.executor import runtime_processes
    from policy.files import write_atomically
    from policy.locate import working_bundle

    bundles = [working_bundle(name) for name in arguments.policy]
    answers = []
    with runtime_processes() as runtimes, command_line.progress_bar("executing in every runtime") as progress:
        for bundle in bundles:
            observations = flown_observations(decide_with(bundle), arguments.observations, SEED)
            for precision in arguments.precision:
                answers.append(ask(bundle, precision, observations, runtimes))
                progress(len(answers), len(bundles) * len(arguments.precision))
    document = {"machine": describe_machine().sentence(), "answers": [asdict(answer) for answer in answers]}
    if arguments.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        rendering.print_table(table(document), command_line.console())
    if arguments.keep:
        if kept_file().exists():
            kept = json.loads(kept_file().read_text(encoding="utf-8"))
            store.refuse_less(kept_file(), amounts(kept), amounts(document), "observations")
        write_atomically(kept_file(), (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    return command_line.EXIT_OK


def amounts(document: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """Observations that each policy and precision was asked on."""
    return {(each["policy"], each["precision"]): each["observations"] for each in document["answers"]}


def kept_file() -> Path:
    """Where --keep stores the answer."""
    from bench.report import store

    return store.RESULTS / "agreement.json"


def kept_table() -> Table:
    """The table of the stored answer.

    Raises:
        StoreError: nothing is stored.
    """
    from bench.report import store

    path = kept_file()
    if not path.exists():
        raise store.StoreError(
            f"{path} does not exist: nothing was asked yet.\n  next: python bench/agreement.py --keep"
        )
    return table(json.loads(path.read_text(encoding="utf-8")))


def decide_with(bundle: Bundle) -> Decide:
    """The float policy, by the numpy reference."""
    from policy.network import choose_actions, forward_float

    spec, weights = bundle.spec, bundle.weights()
    return lambda observation: choose_actions(spec, forward_float(spec, weights, observation))


def flown_observations(decide: Decide, count: int, seed: int, episodes: int = EPISODES) -> np.ndarray:
    """Different observations (count, 32) from many episodes of the hard preset, spread evenly over all decisions."""
    import numpy as np

    from airlearning_envs.config import preset
    from airlearning_envs.flights import fly

    seen: list[np.ndarray] = []

    def recording(observation: np.ndarray) -> np.ndarray:
        seen.append(observation.copy())
        return decide(observation)

    fly(preset("hard"), recording, episodes, seed, batch=episodes)
    flown = np.concatenate(seen)
    # A policy that hovers sees the same again and again.
    flown = flown[np.sort(np.unique(flown, axis=0, return_index=True)[1])]
    if len(flown) < count:
        raise command_line.BenchError(
            f"{episodes} episodes gave {len(flown)} different observations, not {count}; ask for fewer."
        )
    return flown[np.linspace(0, len(flown) - 1, count).astype(int)]


def ask(
    bundle: Bundle, precision: Precision, observations: np.ndarray, runtimes: Mapping[RuntimeName, RuntimeProcess]
) -> Agreement:
    """Execute both artifacts of a precision in every runtime and compare the actions."""
    import numpy as np

    results, reference = executed_everywhere(bundle, precision, observations, runtimes)
    chosen = next(iter(results.values())).actions
    return Agreement(
        policy=bundle.spec.name,
        precision=precision.value,
        observations=len(observations),
        actions_chosen=len(np.unique(chosen)),
        runtimes={name.value: execution.version for name, execution in results.items()},
        disagreements=tuple(disagreements(results, reference.step)),
    )


def executed_everywhere(
    bundle: Bundle, precision: Precision, observations: np.ndarray, runtimes: Mapping[RuntimeName, RuntimeProcess]
) -> tuple[dict[RuntimeName, Execution], Reference]:
    """Both artifacts of a precision, judged on the golden vectors and then executed on the observations."""
    from convert.pipeline import build, judge
    from policy.spec import ArtifactFormat

    results = {}
    for artifact_format in ArtifactFormat:
        candidate = build(bundle, precision, artifact_format)
        judge(bundle, candidate, runtimes)
        for runtime, process in runtimes.items():
            if runtime.artifact_format is artifact_format:
                results[runtime] = process.execute(bundle.spec, candidate.data, observations)
    return results, candidate.reference


def disagreements(results: Mapping[RuntimeName, Execution], step: float | None) -> list[Disagreement]:
    """Every observation on which not all runtimes choose one action; ``step`` is one step of the output's scale."""
    import numpy as np

    chosen = np.stack([execution.actions for execution in results.values()])
    found = []
    for index in np.flatnonzero((chosen != chosen[0]).any(axis=0)):
        actions = sorted(set(chosen[:, index].tolist()))
        gap = max(float(np.ptp(execution.outputs[index][actions])) for execution in results.values())
        by_runtime = {name.value: int(execution.actions[index]) for name, execution in results.items()}
        found.append(Disagreement(int(index), by_runtime, gap, None if step is None else gap / step))
    return found


def table(document: Mapping[str, Any]) -> Table:
    """The answers as they were stored."""
    from bench.report.tables import Table

    rows, notes = [], []
    for answer in document["answers"]:
        found = [Disagreement(**item) for item in answer["disagreements"]]
        same = answer["observations"] - len(found)
        in_steps = answer["precision"].startswith("int")
        gaps = [d.gap if d.gap_steps is None else d.gap_steps for d in found]
        words = "–" if not gaps else f"{max(gaps):.2f} steps" if in_steps else f"{max(gaps):.1e}"
        rows.append((answer["policy"], answer["precision"], f"{same:,} of {answer['observations']:,}", words))
        notes += [f"{answer['policy']} {answer['precision']}: {d.sentence()}." for d in found]
    versions = document["answers"][0]["runtimes"]
    return Table(
        name="agreement",
        title=f"The same action in {', '.join(f'{name} {version}' for name, version in versions.items())}",
        headers=("policy", "precision", "same action in all", "widest gap where not"),
        rows=tuple(rows),
        notes=(
            f"Observations that each policy sees in {EPISODES} flights of preset hard. Gap: between the outputs of the "
            f"actions that were chosen, in steps of the output's scale. Executed on {document['machine']}.",
            *notes,
        ),
        left=2,
    )


if __name__ == "__main__":
    raise SystemExit(main())
