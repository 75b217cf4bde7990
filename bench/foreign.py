"""Foreign policies: how far each imported one is from its original, and what both earn on the same episodes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import answer_command, command_line

if TYPE_CHECKING:
    from quarl.bench.report.tables import Table

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
TASKS = {
    **dict.fromkeys(("ppo_cartpole", "a2c_cartpole", "dqn_cartpole", "ppo_elu", "ppo_silu_unlike_features"), CARTPOLE),
    **dict.fromkeys(("ddpg_pendulum", "ppo_pendulum_normalised", "sac_pendulum", "ppo_gsde"), PENDULUM),
    "cleanrl_dqn": CARTPOLE,
    "cleanrl_ppo": PENDULUM,
    "cleanrl_sac": PENDULUM,
}
"""The task by file, where the policy was trained on a task that needs no suite."""
ACTIONS = {"swish_plain": "as-is", "images": "discrete", "sb3_discrete": "discrete"}
OUTPUTS = {"swish_two_outputs": "loc"}
"""The output to import, by model, where a model has several."""
ROWS = 96


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(answer_command.Answering):
    """What is imported.

    Attributes:
        names: of files (default: all)
        episodes: of those with a task
    """

    names: tuple[str, ...] = field(default=(), kw_only=False)
    episodes: int = 100


def _ask(options: Options) -> dict[str, Any]:
    return {"episodes": options.episodes, "policies": list(imported(options.names, options.episodes))}


def imported(names: Sequence[str], episodes: int) -> Iterator[dict[str, Any]]:
    """Each file's import, as JSON values."""
    from quarl.bench.tables.foreign import REFUSED
    from quarl.policy.places import PROJECT_ROOT

    folder = PROJECT_ROOT / "tests" / "convert" / "importers" / "files"
    zips = {path.parent.name: path for path in sorted(folder.glob("sb3/*/policy.zip"))}
    graphs = {path.stem: path for path in sorted(folder.glob("onnx/*.onnx")) if path.stem not in REFUSED}
    folders = {f"leapp_{path.parent.name}": path.parent for path in sorted(folder.glob("leapp/*/golden.npz"))}
    folders = {name: path for name, path in folders.items() if name not in REFUSED}
    models = {path.stem: path for path in sorted(folder.glob("keras/*.keras"))}
    weights = {path.parent.name: path for path in sorted(folder.glob("weights/*/policy.*"))}
    files = {**zips, **graphs, **models, **weights, **folders}
    if unknown := sorted(set(names) - files.keys()):
        raise command_line.BenchError(f"there are no files {unknown}; there are {', '.join(files)}.")
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or files:
            yield _imported(name, files[name], Path(scratch), episodes)


def _imported(name: str, path: Path, scratch: Path, episodes: int) -> dict[str, Any]:
    from quarl.convert.importers.importing import import_policy
    from quarl.convert.importers.words import network_words

    words = [str(path), "--name", "foreign", "--dry-run", "--episodes", str(episodes)]
    if path.is_dir():
        words += ["--observations", str(path / "golden.npz"), "--golden", str(path / "golden.npz")]
    elif path.suffix == ".onnx":
        words += _rollouts(path, scratch)
        if (actions := ACTIONS.get(name.rpartition("_")[0])) is not None:
            words += ["--actions", actions]
    elif path.suffix == ".keras":
        recorded = str(path.with_suffix(".npz"))
        words += ["--observations", recorded, "--golden", recorded, "--period", "0.02"]
        words += [] if "discrete" in name else ["--actions", "as-is"]
        words += ["--output", OUTPUTS[name]] if name in OUTPUTS else []
    else:
        words += ["--golden", str(path.with_name("golden.npz"))]
        if (statistics := path.with_name("vecnormalize.pkl")).exists():
            words += ["--vecnormalize", str(statistics)]
        if (spec := path.with_name("spec.json")).exists():
            words += ["--spec", str(spec)]
        task, observations = TASKS.get(name), str(path.with_name("golden.npz"))
        words += ["--task", task] if task else ["--observations", observations, "--period", "0.02"]
    done = import_policy(cli.options("import", words))
    return {
        "name": name,
        "source": done.policy.source,
        "network": network_words(done.spec),
        "near": done.proof.near / done.proof.span,
        "far": done.proof.far / done.proof.span,
        "runtimes": max(done.proof.runtimes.values()) / done.proof.span,
        "returns": done.returns,
    }


def _rollouts(path: Path, scratch: Path) -> list[str]:
    """Random observations for a graph, of which it is only known what it takes."""
    import numpy as np

    from quarl.convert.importers.registry import read

    inputs = read(path).inputs
    size, random = sum(int(np.prod(part.shape)) for part in inputs), np.random.default_rng(1)
    is_image = len(inputs[0].shape) == 3
    rows = random.integers(0, 256, (ROWS, size)) if is_image else random.normal(0.3, 1.5, (ROWS, size))
    np.savez(scratch / "rollouts.npz", observations=rows.astype(np.float32))
    return ["--observations", str(scratch / "rollouts.npz"), "--period", "0.02"]


def _tables() -> dict[str, Callable[[answer_command.Document], Table]]:
    from quarl.bench.tables.foreign import FOREIGN

    return {FOREIGN.name: FOREIGN.table}


ANSWER = answer_command.AnswerCommand(
    name="foreign",
    ask=_ask,
    tables=_tables,
    amounts=lambda document: {(each["name"],): 1 for each in document["policies"]},
    unit="policies",
    left_out=lambda options: "the names" if options.names else "",
)


@cli.verb()
def foreign(options: Options) -> int:
    """Foreign policies: how far each imported one is from its original, and what both earn on the same episodes.

        quarl bench foreign
        quarl bench foreign --keep

    Every file of tests/convert/importers/files, which the make_*.py there made with the original programs, is imported
    as quarl import imports it; nothing is written. Outputs are compared near the observations and 5 to
    40 standard deviations away, in numpy and in the three runtimes; where the file's task is known, the original, fp32
    and int8 fly the same episodes. --keep stores the answer in results/foreign.json, from where bench/table.py makes
    its table.
    """
    return ANSWER.run(options)


main = cli.of("bench foreign")

if __name__ == "__main__":
    raise SystemExit(main())
