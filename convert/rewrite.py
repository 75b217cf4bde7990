"""``quarl rewrite``: a policy's bundle gets weights that int8 computes better; in fp32 nothing changes.

Action values have their mean over the actions subtracted; a policy without a normaliser gets one, which its first layer
takes back (policy/rewrites.py). The bundle is replaced in one step, and only by one that computes the
same golden outputs. Its artifacts are of the weights before: convert makes new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from quarl import cli
from quarl.policy.bundle import HOST_FILES, Bundle, write_bundle
from quarl.policy.errors import PolicyError
from quarl.policy.locate import shorten_path, working_bundle
from quarl.policy.reference import forward_float
from quarl.policy.rewrites import MOST, Rewrite, common_share, fitting, rewritten
from quarl.policy.spec import DiscreteHead

SAID = {
    Rewrite.CENTRED: "the mean over the actions is subtracted from the outputs",
    Rewrite.NORMALISED: "the observation is normalised by the calibration set, and the first layer takes it back",
}


class RewriteError(PolicyError):
    """A bundle that no rewrite changes; it is as it was."""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise ValueError("it must name a policy, got none; type, for example, I,II,III")
    return names


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Rewrite bundles.

    Attributes:
        policy: names or folders of bundles, by commas
        json: print one JSON document
    """

    policy: Annotated[tuple[str, ...], cli.reads(_names, "NAME[,NAME…]")]
    json: bool = False


@cli.verb(left="nothing was rewritten.")
def run(options: Options) -> tuple[dict[str, Any], str]:
    """Rewrite bundles' weights so that int8 is more exact; bundles that cannot be rewritten stay unchanged.

    quarl rewrite --policy artifacts/mine
    quarl rewrite --policy cartpole-dqn,mountaincar-dqn --json
    """
    done: dict[str, list[str]] = {}
    try:
        bundles = [working_bundle(name) for name in dict.fromkeys(options.policy)]
        for bundle in bundles:  # all are looked at before the first is written
            applicable(bundle)
        for bundle in bundles:
            fit = rewrite(bundle)
            done[str(shorten_path(bundle.path))] = [kind.value for kind in fit]
            if not options.json:
                print(f"{shorten_path(bundle.path)}: {'; '.join(SAID[kind] for kind in fit)}.", flush=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"rewritten: {', '.join(done) or 'nothing'}.") from None
    again = f"Their artifacts are made again: quarl convert --policy {' '.join(options.policy)}"
    return {"rewritten": done}, again


def applicable(bundle: Bundle) -> tuple[Rewrite, ...]:
    """Return the rewrites that fit a bundle's policy.

    Raises:
        RewriteError: there is none; says why.
    """
    spec, weights, observations = bundle.spec, bundle.weights(), bundle.calibration()
    if fit := fitting(spec, weights, observations):
        return fit
    if spec.quantization is not None:
        why = "quantization-aware training put its weights on a grid"
    else:
        why = "it sees images" if spec.network.convolutions or spec.is_image else "it has a normaliser"
        if isinstance(spec.head, DiscreteHead):
            share = common_share(forward_float(spec, weights, observations))
            why += f", and its actions have {share:.0%} of the outputs' variance in common; it helps above {MOST:.0%}"
    raise RewriteError(f"policy {spec.name!r} has nothing to rewrite: {why}. Nothing was written.")


def rewrite(bundle: Bundle) -> tuple[Rewrite, ...]:
    """Replace a bundle, atomically, by one with all rewrites that fit; it keeps its files but for its artifacts.

    Raises:
        RewriteError: none fits.
        SpecError: what was made does not compute the golden outputs. Nothing is written.
    """
    before, golden = bundle.weights(), bundle.golden()
    fit, calibration = applicable(bundle), bundle.calibration()
    spec, weights = rewritten(bundle.spec, before, calibration, fit)
    wanted = golden.outputs.astype(np.float64)
    if Rewrite.CENTRED in fit:
        wanted -= wanted.mean(axis=1, keepdims=True)
    goldens = {entry.golden_file for entry in bundle.manifest.artifacts.values()}
    extra = {name: bundle.data(name) for name in bundle.manifest.files if name not in {*HOST_FILES, *goldens}}
    write_bundle(bundle.path, spec, weights, calibration, golden.observations, extra, wanted)
    return fit


main = cli.of("rewrite")

if __name__ == "__main__":
    raise SystemExit(main())
