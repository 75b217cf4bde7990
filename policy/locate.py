"""Where bundles live (host only): artifacts/NAME is what the user made; with the repository come zoo/NAME, the case
study's policies, zoo/late/NAME, trained with late commands, zoo/depth/NAME, which see depth pictures, and
zoo/benchmark/NAME, those of the benchmark cells (cartpole-dqn, pong-ppo, …). And which code makes them."""

from __future__ import annotations

import difflib
import functools
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime
from importlib import metadata
from pathlib import Path

from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.errors import BundleError, UnknownPolicyError
from quarl.policy.files import lock_folder
from quarl.policy.json_values import abbreviate, is_file_name
from quarl.policy.places import ARTIFACTS, CODE, IN_CHECKOUT, ZOO
from quarl.policy.reading import MANIFEST_FILE, WEIGHTS_FILE

SHELVES = ("late", "depth", "memory", "benchmark")
"""Folders of zoo/ that hold bundles: a command that takes all policies means none of theirs."""
_printed: set[str] = set()


def working_bundle(name_or_path: str, artifacts: Path = ARTIFACTS, zoo: Path = ZOO, *, quiet: bool = False) -> Bundle:
    """Return the bundle that a command works on, verified; which one it is, is printed once, on standard error.

    ``quiet``: that is left to the command behind this one.

    A name (``III``, ``cartpole-dqn``) means artifacts/NAME, copied there from the repository's when it is
    not there yet or when the copy is of an older zoo. A path means that folder.

    Raises:
        BundleError: neither exists; says which names do.
    """
    is_path = "/" in name_or_path or name_or_path in (".", "..")
    if is_path:
        bundle = Bundle.load(Path(name_or_path))
    else:
        with lock_folder(artifacts):  # two commands at once must not both copy
            bundle = _find_by_name(name_or_path, artifacts, zoo)
    by_name = not is_path or bundle.path.resolve().parent == artifacts.resolve()
    meant_path = describe_source(bundle, find_shipped(bundle.path.name, zoo) if by_name else None)
    if meant_path not in _printed and not quiet:  # a command may need its bundle more than once
        _printed.add(meant_path)
        print(meant_path, file=sys.stderr)
    return bundle


def describe_source(bundle: Bundle, shipped: Path | None = None) -> str:
    """Return one line: which bundle it is, where it came from, and what it is not.

    Args:
        bundle: as loaded.
        shipped: the repository's bundle of that name, where a name was typed and there is one.
    """
    if bundle.manifest.origin == "zoo" and shipped is not None:
        came = f"a copy of {shorten_path(shipped)}"
    elif ZOO in bundle.path.resolve().parents:
        came = "as it comes with the repository"
    else:
        written = datetime.fromtimestamp((bundle.path / WEIGHTS_FILE).stat().st_mtime)
        origin = "imported" if bundle.spec.is_imported else "trained"
        came = f"{origin} here {written:%Y-%m-%d}"
        if bundle.spec.provenance.get("ended") == "interrupted":
            came += f", by a run that was interrupted at step {bundle.spec.provenance.get('steps')}"
        if shipped is not None:
            came += f" ({shorten_path(shipped)} is not used; it is once {shorten_path(bundle.path)} is removed)"
    return f"Policy {bundle.spec.name}: {shorten_path(bundle.path)}, {came}."


def shorten_path(path: Path) -> Path:
    """Return the path as it may be typed in the current folder."""
    full, here = path.resolve(), Path.cwd()
    return full.relative_to(here) if full.is_relative_to(here) else full


def _find_by_name(name: str, artifacts: Path, zoo: Path) -> Bundle:
    if not is_file_name(name):
        raise BundleError(
            f"a policy name must be printable and at most 255 bytes, got {abbreviate(name)}.",
            "Type the policy's name, or the path of its folder.",
            code="bad_policy_name",
        )
    own, shipped = artifacts / name, find_shipped(name, zoo)
    if own.exists():
        bundle = Bundle.load(own)
        if bundle.manifest.origin != "zoo" or shipped is None:
            return bundle
        fresh = Bundle.load(shipped)
        # Not the weights alone: the normaliser, the calibration and the golden vectors decide what artifacts compute.
        if fresh.manifest.files.items() <= bundle.manifest.files.items():
            return bundle
        return copy_bundle(fresh, own, origin="zoo")
    if shipped is not None:
        return copy_bundle(Bundle.load(shipped), own, origin="zoo")
    # The case study's first, then the other shelves'; a dict keeps the order.
    known = dict.fromkeys(
        path.parent.name
        for root in (zoo, *(zoo / shelf for shelf in SHELVES), artifacts)
        for path in sorted(root.glob(f"[!.]*/{MANIFEST_FILE}"))
    )
    own_path = shlex.quote(f"artifacts/{name}")
    matches = similar(name, known)
    others = "" if IN_CHECKOUT else " The package contains I and II; III and the others are in the repository."
    there_are = f"did you mean {' or '.join(matches)}?" if matches else f"available: {', '.join(known) or 'none'}."
    raise UnknownPolicyError(
        f"there is no policy {name!r}; {there_are}{others}",
        f"Train one of that name: quarl train --task navigation --policy I --output-path {own_path}",
        name=name,
        known=list(known),
    )


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that a mistyped one may stand for: those that differ in case alone, else at most three close
    ones."""
    folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    if name.casefold() in folded:
        return [folded[name.casefold()]]
    return [folded[candidate] for candidate in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)]


def find_shipped(name: str, zoo: Path = ZOO) -> Path | None:
    """Return where the repository has the bundle of that name; None where it has none."""
    places = (zoo / name, *(zoo / shelf / name for shelf in SHELVES))
    return next((place for place in places if place.exists() and name not in SHELVES), None)


@functools.cache
def code_version() -> str:
    """``git describe`` of the checkout, ``-dirty`` where the code differs from it; installed, the package's version."""
    if not IN_CHECKOUT:
        return f"quarl {metadata.version('quarl')}"
    try:
        version = _git("describe", "--always", "--tags").strip()
        return f"{version}-dirty" if list_changed_code() else version or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def list_changed_code() -> list[str]:
    """Tracked files that differ from the last commit, other than results, pages and pictures, which are no code."""
    listed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!results", ":/!docs", ":/!README.md")
    return [line[3:] for line in listed.splitlines()]


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=CODE, capture_output=True, text=True, timeout=10, check=True).stdout
