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
from quarl.policy.console import columns
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
SIZE_FACTORS = {Precision.W8: 1.25, Precision.W4: 1.25, Precision.DYNAMIC: 1.1}
"""How much larger an integer artifact may be than one that computes with floats: it is faster, or smaller in memory."""
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
        return f"{self.percent:.2f} % [{self.low:.2f}, {self.high:.2f}], {self.episodes:,} episodes"


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
        code: commit that it was climbed with.
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
    code: str = "unknown"

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
            size, bits = float(min(rung.bytes[form] for form in formats if form in rung.bytes)), -rung.precision.bits
            if self.prefer is Prefer.SIZE:
                return size * SIZE_FACTORS.get(rung.precision, 1.0), bits
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

    def describe(self, policy: str, formats: Sequence[ArtifactFormat] = tuple(ArtifactFormat)) -> str:
        """Return the ladder as a table, the choices marked; then the hints."""
        chosen = {form.value: self.choose([form]) for form in formats if self.has_choice(form)}
        measured = any(rung.instructions for rung in self.rungs)
        rows = [["bits", "KB", "agreement", "return lost [95 %]", *(["instructions"] if measured else []), ""]]
        for rung in self.rungs:
            keeps, loss = self.keeps(rung), "–" if rung.loss is None else str(rung.loss)
            outcome = {True: "keeps it", False: "loses more", None: "not decided"}[keeps]
            outcome = "what was trained" if rung.precision is self.trained else outcome
            takes = [name for name, precision in chosen.items() if precision is rung.precision]
            if takes:
                outcome += f"; taken for {', '.join(takes)}"
            sizes = [rung.bytes[form] for form in formats if form in rung.bytes]
            counts = (rung.instructions or {}).values()
            size = f"{min(sizes) / 1000:.1f}" if sizes else "–"
            row = [rung.precision.bits_argument, size, f"{rung.agreement:.1%}", loss]
            rows.append([*row, *([f"{min(counts):,}" if counts else "–"] if measured else []), outcome])
        where = f" on {self.task}{f', preset {self.preset}' if self.preset else ''}" if self.task else ""
        what = "return" if self.task else "decisions"
        lines = [f"{policy}{where}: at most {self.max_loss:g} % of the {what} may be lost; {self.prefer.value} first"]
        lines += columns(rows, right={1, 2, 4} if measured else {1, 2})
        fresh = [rung for rung in self.rungs if rung.fresh is not None]
        lines += [f"On other episodes, {rung.precision.value} loses {rung.fresh}." for rung in fresh]
        return "\n".join([*lines, *self.hints])

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
        document = json_values.parse_object(read_file(path, LARGEST_LADDER))
        ladder: Ladder = json_values.read(Ladder, {"code": "unknown", **document})  # of an earlier version without
    except (JsonValueError, KeyError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}.", f"Remove it, and type: quarl convert --bits {AUTO}"
        ) from None
    return ladder if ladder.weights_sha256 == bundle.manifest.files[WEIGHTS_FILE].sha256 else None


def choose_precisions(ladder: Ladder | None, bits: str, formats: Sequence[ArtifactFormat]) -> tuple[Precision, ...]:
    """Return the precisions that ``8``, ``32,8``, ``mixed`` or ``auto`` names, each once, for these formats.

    Raises:
        BundleError: ``auto``, and the ladder has not been climbed, or nothing keeps the return.
        SpecError: anything else that is no precision.
    """
    if bits != AUTO:
        return tuple(dict.fromkeys(Precision.parse(part.strip()) for part in bits.split(",")))
    if ladder is None:
        raise BundleError(
            f"--bits {AUTO} requires a ladder of precisions, and the bundle has none.",
            f"Type: quarl convert --bits {AUTO} --policy POLICY (make: make convert BITS={AUTO})",
            code="no_ladder",
        )
    return (ladder.choose(formats),)


@dataclass(frozen=True)
class Kept:
    """What an artifact keeps of the policy.

    Attributes:
        file: in the bundle.
        agreement: with the policy on the golden observations (``convert.acceptance.agreement``).
        return_lost: on fresh episodes where there are any; None where it was never measured.
    """

    file: str
    agreement: float
    return_lost: Loss | None

    def __str__(self) -> str:
        lost = "" if self.return_lost is None else f", return lost {self.return_lost}"
        return f"{self.file}: agreement {self.agreement:.1%}{lost}"


def require_artifact(
    bundle: BundleFiles, ladder: Ladder | None, precision: Precision, form: ArtifactFormat, accept: bool
) -> Kept:
    """Return what an artifact that is to be deployed keeps of the policy.

    Raises:
        BundleError: it is not there; says how to make it.
        AcceptanceError: its agreement is below the floor, neither accepted nor chosen by the return.
    """
    entry = bundle.artifact(precision, form)
    rung = None if ladder is None else ladder.rung(precision)
    keeps = ladder is not None and rung is not None and rung.loss is not None and ladder.keeps(rung)
    if not (accept or keeps):
        recipe = entry.recipe if precision.is_integer else None
        require_min_agreement(bundle.spec, entry.file, recipe, entry.fp32_agreement, entry.warnings, "deployed")
    return Kept(entry.file, entry.fp32_agreement, None if rung is None else rung.fresh or rung.loss)
