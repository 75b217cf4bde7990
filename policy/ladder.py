"""How much of a policy each precision keeps, as ``quarl convert --bits auto`` found it: ladder.json of a bundle.

``convert`` writes it, ``deploy`` chooses by it and says from it what an artifact loses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from quarl.policy import json_values
from quarl.policy.errors import BundleError, PolicyError
from quarl.policy.files import write_atomically
from quarl.policy.json_values import JsonValueError
from quarl.policy.reading import WEIGHTS_FILE, BundleFiles, read_file
from quarl.policy.simulate import find_trained_quantizers
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision, Recipe, RuntimeName

FLOOR = 0.75  # the help of --accept calls it three quarters
"""Agreement below which nothing is written or deployed unless the user accepts it: below the int8 artifact of every
committed policy, above a policy with another one's weights."""
LADDER_FILE = "ladder.json"
LARGEST_LADDER = 1 << 20
AUTO = "auto"
"""What is typed in place of bits."""


class AcceptanceError(PolicyError):
    """An artifact's agreement with the policy is below the threshold; nothing was written or deployed."""


def require_min_agreement(
    spec: PolicySpec, file: str, recipe: Recipe | None, found: float, warnings: Sequence[str], outcome: str = "written"
) -> None:
    """Refuse an artifact whose agreement with the policy is below the floor.

    One of the width that the policy was trained with is what was trained, and its float weights are not.

    Raises:
        AcceptanceError: says how much it has, what is allowed, and what may be wrong.
    """
    if found >= FLOOR or (recipe is not None and find_trained_quantizers(spec, recipe.bits) is not None):
        return
    measure = "same actions" if spec.is_discrete else "explained variance of the worst output"
    reasons = f" Its calibration: {' '.join(warnings)}" if warnings else ""
    raise AcceptanceError(
        f"{spec.name}/{file}: agreement with the trained policy is {found:.1%} ({measure}, on golden observations), "
        f"below the threshold of {FLOOR:.0%}. It was not {outcome}.{reasons}",
        "Take the fewest bits that keep the policy: --bits auto (make: BITS=auto). To use it anyway: --accept "
        "(make: ACCEPT=1).",
    )


class Prefer(Enum):
    """Which of the artifacts that keep the return is taken."""

    SIZE = "size"
    SPEED = "speed"


@dataclass(frozen=True)
class Loss:
    """Return lost on the same episodes, in percent of the policy's own: positive where a precision earns less.

    Attributes:
        percent: 100 · (F − Q) / |F|.
        low, high: 95 % interval. Equal returns in n episodes say that at most 3 / n of all are others.
        episodes: how many.
    """

    percent: float
    low: float
    high: float
    episodes: int

    def __str__(self) -> str:
        return f"{self.percent:.2g} % [{self.low:.2g}, {self.high:.2g}], {self.episodes:,} episodes"


@dataclass(frozen=True)
class Rung:
    """One precision.

    Attributes:
        precision: which.
        agreement: with the policy, on golden and calibration observations (``convert.acceptance.agreement``).
        bytes: size of its artifact in each format.
        loss: return lost on the episodes that it was chosen by; None where the task is not known.
        fresh: return lost on other episodes, of a rung that was chosen.
        instructions: of one decision on a Cortex-A53 in each runtime, where they were counted.
    """

    precision: Precision
    agreement: float
    bytes: Mapping[ArtifactFormat, int]
    loss: Loss | None = None
    fresh: Loss | None = None
    instructions: Mapping[RuntimeName, int] | None = None

    def keeps(self, max_loss: float) -> bool | None:
        """Return whether at most ``max_loss`` percent of the return are lost; None where the episodes do not tell.

        Where the return is not known, at most as many percent of the decisions may differ.
        """
        if self.loss is None:
            return 100.0 * (1.0 - self.agreement) <= max_loss
        if self.loss.high <= max_loss:
            return True
        return False if self.loss.low > max_loss else None


@dataclass(frozen=True)
class Ladder:
    """All precisions of a policy that were tried.

    Attributes:
        weights_sha256: of the policy.
        trained: the precision that computes what was trained, with which the others are compared: fp32, or that of the
            quantizers in the training. It keeps everything.
        task, preset, seed: of the episodes; the task is "" where it is not known.
        max_loss: percent of the return that may be lost.
        prefer: which of those that keep it is taken.
        rungs: from few bits to many.
        hints: sentences on the layers to blame, and on what would help.
    """

    weights_sha256: str
    trained: Precision
    task: str
    preset: str
    seed: int
    max_loss: float
    prefer: Prefer
    rungs: tuple[Rung, ...]
    hints: tuple[str, ...] = ()

    def rung(self, precision: Precision) -> Rung | None:
        """Return what was found of a precision."""
        return next((rung for rung in self.rungs if rung.precision is precision), None)

    def keeps(self, rung: Rung) -> bool | None:
        """Return whether a precision keeps the return; see :meth:`Rung.keeps`."""
        return rung.precision is self.trained or rung.keeps(self.max_loss)

    def has_choice(self, form: ArtifactFormat) -> bool:
        """Return whether a precision keeps the return in a format."""
        return any(self.keeps(rung) and form in rung.bytes for rung in self.rungs)

    def choose(self, formats: Sequence[ArtifactFormat]) -> Precision:
        """Return the smallest or fastest precision that keeps the return, in one of these formats.

        Of equally small ones the one with more bits, which loses less.

        Raises:
            BundleError: none keeps it.
        """

        def cost(rung: Rung) -> tuple[float, ...]:
            size, bits = min(rung.bytes[form] for form in formats if form in rung.bytes), -rung.precision.bits
            if self.prefer is Prefer.SIZE:
                return size, bits
            counts = (rung.instructions or {}).items()
            return min((n for name, n in counts if name.artifact_format in formats), default=1e18), size, bits

        kept = [rung for rung in self.rungs if self.keeps(rung) and any(form in rung.bytes for form in formats)]
        if not kept:
            names = ", ".join(form.value for form in formats)
            raise BundleError(
                f"no precision in {names} keeps the policy within {self.max_loss:g} % of its return.",
                "Type another --runtime or --format, or allow more: --max-loss.",
                code="nothing_keeps_the_return",
            )
        return min(kept, key=cost).precision

    def with_fresh(self, precision: Precision, loss: Loss) -> Ladder:
        """Return the ladder with what a precision that was chosen loses on other episodes."""
        rungs = tuple(replace(rung, fresh=loss) if rung.precision is precision else rung for rung in self.rungs)
        return replace(self, rungs=rungs)

    def write(self, folder: Path) -> None:
        """Write it into a bundle, whole or not at all."""
        write_atomically(folder / LADDER_FILE, (json.dumps(json_values.write(self), indent=2) + "\n").encode())


def read_ladder(bundle: BundleFiles) -> Ladder | None:
    """Return a bundle's ladder; None where it has none of its present weights.

    Raises:
        BundleError: the file is damaged.
    """
    path = bundle.path / LADDER_FILE
    if not path.exists():
        return None
    try:
        ladder: Ladder = json_values.read(Ladder, json_values.parse_object(read_file(path, LARGEST_LADDER)))
    except (JsonValueError, KeyError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}.", f"Remove it, and type: quarl convert --bits {AUTO}"
        ) from None
    return ladder if ladder.weights_sha256 == bundle.manifest.files[WEIGHTS_FILE].sha256 else None


def choose_precisions(bundle: BundleFiles, bits: str, formats: Sequence[ArtifactFormat]) -> list[Precision]:
    """Return the precisions that ``8``, ``32,8``, ``mixed`` or ``auto`` names, of a bundle for these formats.

    Raises:
        BundleError: ``auto``, and the ladder has not been climbed, or nothing keeps the return.
        SpecError: anything else that is no precision.
    """
    if bits != AUTO:
        return list(dict.fromkeys(Precision.parse(part.strip()) for part in bits.split(",")))
    ladder = read_ladder(bundle)
    if ladder is None:
        raise BundleError(
            f"{bundle.path} has no ladder of precisions to choose from.",
            f"Type: quarl convert --bits {AUTO} --policy {bundle.path}",
            code="no_ladder",
        )
    return [ladder.choose(formats)]
