"""The initial RAM disk: busybox, one script, and the modules of both machines in the order they load."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from quarl.device.virtual_pi.errors import BuildError
from quarl.device.virtual_pi.recipe import DRIVERS, GUEST_FILES, MachineKind


def normal(name: str) -> str:
    """A module's name as modprobe compares it: sdhci-iproc and sdhci_iproc are the same."""
    return name.replace("-", "_")


def parse_dependencies(text: str) -> dict[str, tuple[str, list[str]]]:
    """Read modules.dep: module name -> (its file, the files it needs, the last of which loads first)."""
    modules = {}
    for line in text.splitlines():
        file, _, needs = line.partition(":")
        modules[normal(Path(file).name.split(".ko")[0])] = (file, needs.split())
    return modules


def load_order(names: Iterable[str], dependencies: Mapping[str, tuple[str, list[str]]]) -> list[str]:
    """The files to load for ``names``, each after what it needs; a module built into the kernel is in no list.

    Raises:
        BuildError: the kernel has no such module.
    """
    files: list[str] = []
    for name in names:
        if normal(name) not in dependencies:
            raise BuildError(f"Debian's kernel has no module {name}.", "Another kernel version may build it in.")
        file, needs = dependencies[normal(name)]
        files += [*reversed(needs), file]
    return list(dict.fromkeys(files))


def write_initrd(initrd: Path, root: Path, modules: Path) -> None:
    """Pack the RAM disk.

    Args:
        initrd: the file to write (cpio).
        root: the unpacked system, for its busybox.
        modules: lib/modules/VERSION in it, after depmod.

    Raises:
        BuildError: a module is missing, or cpio failed.
    """
    dependencies = parse_dependencies((modules / "modules.dep").read_text())
    with tempfile.TemporaryDirectory(dir=initrd.parent, prefix="initrd-") as temporary:
        tree = Path(temporary)
        (tree / "bin").mkdir()
        (tree / "modules").mkdir()
        shutil.copy(root / "bin" / "busybox", tree / "bin" / "busybox")
        shutil.copy(GUEST_FILES / "initrd-init", tree / "init")
        (tree / "init").chmod(0o755)
        for kind in MachineKind:
            order = load_order(DRIVERS[kind].names, dependencies)
            (tree / f"modules-{kind.value}").write_text("".join(f"{Path(file).name}\n" for file in order))
            for file in order:
                shutil.copy(modules / file, tree / "modules" / Path(file).name)
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))) + "\n"
        archive = tree / "archive"
        with archive.open("wb") as stream:
            packed = subprocess.run(
                ["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"],
                cwd=tree,
                input=names.encode(),
                stdout=stream,
                stderr=subprocess.PIPE,
            )
        if packed.returncode != 0:
            raise BuildError(f"cpio failed: {packed.stderr.decode(errors='replace')[-300:]}")
        shutil.move(archive, initrd)
