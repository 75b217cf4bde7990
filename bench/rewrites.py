"""Rewrites: what int8 gains where a head is centred or a first layer takes up a normaliser, on every committed bundle.

    python bench/rewrites.py
    python bench/rewrites.py --policy cartpole-dqn,walker2d-ddpg
    python bench/rewrites.py --keep

Of each bundle its int8 as it is and rewritten (policy/rewrites.py), both compared with fp32 as it is; rewritten is also
what the rule leaves alone. The calibration set is cut in two at random; each half sets ranges and normaliser, and the
rows of the other are compared, so that none is compared with ranges that it set; then the golden observations, with all
of the calibration set. Nothing is written but, with --keep, the answer in results/rewrites.json, from where
bench/table.py makes its table. Of a bundle that has been rewritten since, what is stored of it stays.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line

if TYPE_CHECKING:
    import numpy as np

    from bench.report.tables import Table
    from policy.bundle import Bundle
    from policy.spec import PolicySpec

REWRITES = "rewrites"
SEED = 0  # of the halves


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite, compare, print, keep."""
    parser = answer_command.parser(__doc__, "bench/rewrites.py")
    parser.add_argument("--policy", type=command_line.words, default=[], metavar="NAME,…", help="default: all")
    return ANSWER.run(parser.parse_args(argv))


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"bundles": list(_bundles(arguments.policy))}


def _bundles(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each committed bundle, or those of these names, as JSON values."""
    from bench.report import store
    from policy.bundle import Bundle
    from policy.locate import ZOO
    from policy.manifest import MANIFEST_FILE
    from policy.reading.bundle_files import WEIGHTS_FILE

    file = store.answer_file(REWRITES)
    stored = {each["becomes"]: each for each in (store.kept_answer(file, "")["bundles"] if file.exists() else ())}
    folders = {path.parent.name: path.parent for path in ZOO.glob(f"**/{MANIFEST_FILE}")}
    if unknown := sorted(set(names) - folders.keys()):
        raise command_line.UsageError(f"there are no committed policies {unknown}; there are {', '.join(folders)}.")
    chosen = sorted(names or folders)
    with command_line.progress_bar("rewriting and comparing") as progress:
        for done, name in enumerate(chosen, 1):
            bundle = Bundle.load(folders[name])
            before = stored.get(bundle.manifest.files[WEIGHTS_FILE].sha256)
            if before is not None and before["fits"]:  # its weights are what those of the row became
                yield {**before, "since": True}
            else:
                yield measured(bundle)
            progress(done, len(chosen))


def measured(bundle: Bundle) -> dict[str, Any]:
    """A bundle's int8, as it is and rewritten, as JSON values."""
    import numpy as np
    from safetensors.numpy import save

    from policy.network import forward_float
    from policy.rewrites import common_share, fitting, possible, rewritten

    spec, weights = bundle.spec, bundle.weights()
    calibration, golden = bundle.calibration(), bundle.golden()
    order = np.random.default_rng(SEED).permutation(len(calibration))
    halves = np.sort(order[::2]), np.sort(order[1::2])
    held_out = [
        compared(spec, weights, calibration[ours], calibration[others]) for ours, others in (halves, halves[::-1])
    ]
    _, made = rewritten(spec, weights, calibration)
    return {
        "policy": spec.name,
        "discrete": spec.is_discrete,
        "rewrites": [each.value for each in possible(spec)],
        "fits": [each.value for each in fitting(spec, weights, calibration)],
        "in_common": common_share(forward_float(spec, weights, calibration)) if spec.is_discrete else None,
        "held_out": summary(spec, Compared.joined(held_out)),
        "golden": summary(spec, compared(spec, weights, calibration, golden.observations)),
        "becomes": hashlib.sha256(
            save({name: np.ascontiguousarray(value) for name, value in made.items()})
        ).hexdigest(),
    }


@dataclass(frozen=True)
class Compared:
    """Outputs on the same observations, each (n, output_size).

    Attributes:
        wanted: outputs of fp32 as it is.
        before, after: outputs of int8, as it is and rewritten.
        floats: outputs of fp32 rewritten.
    """

    wanted: np.ndarray
    before: np.ndarray
    after: np.ndarray
    floats: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Compared]) -> Compared:
        """The observations of all parts, joined."""
        import numpy as np

        names = ("wanted", "before", "after", "floats")
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def compared(
    spec: PolicySpec, weights: Mapping[str, np.ndarray], calibration: np.ndarray, observations: np.ndarray
) -> Compared:
    """A policy's outputs on ``observations`` before and after all rewrites that it can have.

    Ranges and normaliser are taken from ``calibration``.
    """
    from policy.integer import forward_integer
    from policy.network import forward_float
    from policy.quantizing.network import quantize_network
    from policy.rewrites import possible, rewritten

    def in_int8(spec: PolicySpec, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        return forward_integer(spec, quantize_network(spec, weights, calibration), observations)[:, heads]

    heads = slice(spec.output_size)  # a recurrent policy's next states stand behind them
    wanted, before = forward_float(spec, weights, observations)[:, heads], in_int8(spec, weights)
    if not possible(spec):
        return Compared(wanted, before, before, wanted)
    new_spec, made = rewritten(spec, weights, calibration, possible(spec))
    return Compared(wanted, before, in_int8(new_spec, made), forward_float(new_spec, made, observations)[:, heads])


def summary(spec: PolicySpec, found: Compared) -> dict[str, Any]:
    """How far int8 acts as fp32 before and after, and the paired gain, as JSON values: shares, no percent."""
    import numpy as np

    from bench.report.intervals import Estimate, paired_difference
    from convert.acceptance import SMALLEST_DEVIATION
    from policy.spec import output_spans

    outputs = {"before": found.before, "after": found.after}
    if spec.is_discrete:
        chosen = found.wanted.argmax(axis=1)
        same = {name: each.argmax(axis=1) == chosen for name, each in outputs.items()}
        pairs = paired_difference(same["after"].tolist(), same["before"].tolist())
        gain = Estimate(pairs.difference, pairs.low, pairs.high) if pairs.only_a + pairs.only_b else Estimate(0.0)
        sides: dict[str, Any] = {name: {"acts_as_fp32": float(each.mean())} for name, each in same.items()}
        apart = float(np.sum(found.floats.argmax(axis=1) != chosen))
    else:
        spans, own = (
            np.array(output_spans(spec, float(found.wanted.min()), float(found.wanted.max()))),
            found.wanted.astype(np.float64),
        )
        variance = np.maximum(own.var(axis=0), (SMALLEST_DEVIATION * spans) ** 2)
        missed = {name: ((each - own) ** 2 / variance).mean(axis=1) for name, each in outputs.items()}
        gain = Estimate.of_mean((missed["before"] - missed["after"]).tolist()).shown
        shares = {name: (each - own) / spans for name, each in outputs.items()}
        sides = {
            name: {
                "acts_as_fp32": float(1.0 - missed[name].mean()),
                "largest": float(np.abs(each).max()),
                "rms": float(np.sqrt((each**2).mean())),
            }
            for name, each in shares.items()
        }
        apart = float((np.abs(found.floats - own) / spans).max())
    return {"rows": len(found.wanted), **sides, "gain": [gain.value, gain.low, gain.high], "fp32_apart": apart}


def _tables() -> dict[str, Callable[[answer_command.Document], Table]]:
    from bench.tables.rewrites import REWRITTEN

    return {REWRITTEN.name: REWRITTEN.table}


ANSWER = answer_command.AnswerCommand(
    name=REWRITES,
    command="bench/rewrites.py",
    ask=_ask,
    tables=_tables,
    amounts=lambda document: {(each["policy"],): each["held_out"]["rows"] for each in document["bundles"]},
    unit="observations",
    left_out=lambda arguments: "--policy" if arguments.policy else "",
)


if __name__ == "__main__":
    raise SystemExit(main())
