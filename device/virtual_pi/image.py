"""The image: Debian packages unpacked for arm64 without emulating anything, then what configuring would have made.

Built once for each recipe, in about half a minute, into ``~/.cache/quarl/virtual-pi/images/HASH/``:

card.img            the SD card that every machine's own card is a copy-on-write overlay of (sparse)
vmlinuz initrd.cpio   what QEMU boots
*.dtb               the device tree of the Raspberry Pi 3 Model B
client_ed25519      the key that is let in (0600)
host_ed25519.pub    the host key; its private half is on the card alone
image.json          which build this is, and when it was made
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quarl.device.virtual_pi import programs, recipe, systemd
from quarl.device.virtual_pi.card import write_card
from quarl.device.virtual_pi.errors import BuildError
from quarl.device.virtual_pi.initrd import load_order, parse_dependencies, write_initrd
from quarl.device.virtual_pi.sources import own_sources
from quarl.policy.files import lock_folder
from quarl.policy.places import cache_folder

Tell = Callable[[str], None]
_DOWNLOAD_TIMEOUT_S = 1200
_PATH = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt")


@dataclass(frozen=True)
class Image:
    """A finished image."""

    folder: Path
    build: str
    """Which build: changes whenever an image is made again, and with it both keys."""
    built_unix: int
    kernel_version: str

    @property
    def card(self) -> Path:
        """The card that overlays are laid on."""
        return self.folder / "card.img"

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initial RAM disk."""
        return self.folder / "initrd.cpio"

    @property
    def device_tree(self) -> Path:
        """The Raspberry Pi's device tree."""
        return self.folder / recipe.DEVICE_TREE

    @property
    def client_key(self) -> Path:
        """The private key that is let in as pi and as root."""
        return self.folder / "client_ed25519"

    @property
    def host_key(self) -> str:
        """The public host key: ``ssh-ed25519 AAAA…``."""
        return " ".join((self.folder / "host_ed25519.pub").read_text().split()[:2])


def base_folder() -> Path:
    """Where images and machines are: a cache, everything in it can be made again."""
    return cache_folder() / "virtual-pi"


def load_image(folder: Path) -> Image | None:
    """The image of a folder, or None when there is none that is whole."""
    try:
        facts = json.loads((folder / "image.json").read_text())
        return Image(folder, facts["build"], facts["built_unix"], facts["kernel_version"])
    except (OSError, ValueError, KeyError):
        return None


def ensure_image(tell: Tell, *, rebuild: bool = False, base: Path | None = None) -> Image:
    """The image of the present recipe, built when it is not there.

    Args:
        tell: is told what is being done.
        rebuild: build it in any case; keys and host key are then new.
        base: instead of the cache folder.

    Raises:
        MissingProgramsError, BuildError: nothing half-built is left.
    """
    images = (base or base_folder()) / "images"
    folder = images / recipe.recipe_hash()
    with give_to_user(images), lock_folder(images, mode=0o700):
        existing = load_image(folder)
        if existing is not None and not rebuild:
            return existing
        programs.require(programs.BUILDING, programs.RUNNING)
        require_root()
        for left in images.glob(".building-*"):  # of a build that was killed; the lock says it is not at work
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=images, prefix=".building-") as temporary:
            new_folder = Path(temporary) / "image"
            new_folder.mkdir(mode=0o700)
            _build(new_folder, Path(temporary) / "root", tell)
            if folder.exists():
                folder.rename(Path(temporary) / "old")  # running machines keep the files they have open
            new_folder.rename(folder)
    image = load_image(folder)
    assert image is not None
    return image


def require_root() -> None:
    """Let root pass.

    Raises:
        BuildError: says why root is needed, that only building needs it, and what to type.
    """
    if os.geteuid() != 0:
        raise BuildError(
            "Building the image needs root: the files on the card belong to root, sshd and pi, and only root can "
            "unpack Debian's packages with their owners. Running the image needs no root.",
            f"sudo XDG_CACHE_HOME={cache_folder().parent} {sys.executable} -B -m device.virtual_pi build, "
            "then make pi as yourself",
        )


@contextlib.contextmanager
def give_to_user(folder: Path) -> Iterator[None]:
    """Within ``sudo … build``, whatever comes of it: what is made belongs to who asked for it, and so do the folders
    above that had to be made."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    top = folder
    while not top.parent.exists():
        top = top.parent
    try:
        yield
    finally:
        if os.geteuid() == 0 and user.isdigit() and group.isdigit():
            for path in (top, *top.rglob("*")):
                os.chown(path, int(user), int(group), follow_symlinks=False)


def _build(made: Path, root: Path, tell: Tell) -> None:
    begun = time.monotonic()
    tell("unpacking Debian's packages for arm64 …")
    unpack(root)
    kernel_version = next((root / "lib" / "modules").iterdir()).name
    tell(f"writing accounts, keys and the RAM disk (kernel {kernel_version}) …")
    built = int(time.time())
    _write_keys(made, root)
    write_accounts(root)
    _write_system(root, built)
    _keep_modules(root, kernel_version)
    write_initrd(made / "initrd.cpio", root, root / "lib" / "modules" / kernel_version)
    shutil.copy(root / "boot" / f"vmlinuz-{kernel_version}", made / "vmlinuz")
    shutil.copy(
        root / "usr" / "lib" / f"linux-image-{kernel_version}" / "broadcom" / recipe.DEVICE_TREE,
        made / recipe.DEVICE_TREE,
    )
    for name in (*_LEFT_OUT, "boot", f"usr/lib/linux-image-{kernel_version}"):
        shutil.rmtree(root / name, ignore_errors=True)
    tell("compiling Python's library, writing the card …")
    _compile_python(root)
    write_card(made / "card.img", root)
    shutil.rmtree(root)
    facts = {
        "build": uuid.uuid4().hex,
        "built_unix": built,
        "kernel_version": kernel_version,
        "seconds": round(time.monotonic() - begun, 1),
    }
    (made / "image.json").write_text(json.dumps(facts, indent=1) + "\n")


def unpack(root: Path) -> None:
    """Unpack the packages and what they depend on; nothing of arm64 is executed.

    Raises:
        BuildError: with mmdebstrap's last words.
    """
    command = [
        *("mmdebstrap", "--mode=root", "--arch=arm64", "--variant=extract", "--skip=check/qemu"),
        '--aptopt=APT::Install-Recommends "false"',
        f"--include={','.join(recipe.PACKAGES)}",
        *(recipe.SUITE, str(root), *own_sources(recipe.SUITE)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
        error_text, failed = done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired:
        error_text, failed = f"no end after {_DOWNLOAD_TIMEOUT_S} s", True
    if failed:
        raise BuildError(
            f"mmdebstrap failed: {error_text.strip()[-800:]}",
            "Does `apt-get update` work here? mmdebstrap takes its packages from the same place.",
        )


def _write_keys(made: Path, root: Path) -> None:
    for file, comment in ((made / "client_ed25519", "virtual-pi"), (made / "host_ed25519", "virtual-pi-host")):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    ssh = root / "etc" / "ssh"
    shutil.move(made / "host_ed25519", ssh / "ssh_host_ed25519_key")
    shutil.copy(made / "host_ed25519.pub", ssh / "ssh_host_ed25519_key.pub")
    public = (made / "client_ed25519.pub").read_text()
    for home, owner in ((root / "root", 0), (root / "home" / recipe.USER, recipe.USER_ID)):
        folder = home / ".ssh"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "authorized_keys").write_text(public)
        for path in (home, folder, folder / "authorized_keys"):
            os.chown(path, owner, owner)


def write_accounts(root: Path) -> None:
    """The accounts that unpacking does not make. ``*``: no password fits, while a key still opens."""
    user, number = recipe.USER, recipe.USER_ID
    rows = {
        "passwd": [
            "root:x:0:0:root:/root:/bin/bash",
            "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin",
            f"{user}:x:{number}:{number}::/home/{user}:/bin/bash",
            "messagebus:x:101:101::/nonexistent:/usr/sbin/nologin",
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        ],
        "group": [
            *("root:x:0:", "adm:x:4:pi", "tty:x:5:", "video:x:44:pi", f"{user}:x:{number}:", "nogroup:x:65534:"),
            *(f"{name}:x:{group}:" for name, group in systemd.GROUPS.items()),
        ],
        "shadow": [f"{name}:*:19000:0:99999:7:::" for name in ("root", "sshd", user, "messagebus", "nobody")],
    }
    for name, lines in rows.items():
        path = root / "etc" / name
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o640 if name == "shadow" else 0o644)


def _write_system(root: Path, built: int) -> None:
    etc = root / "etc"
    (etc / "hostname").write_text(f"{recipe.HOST_NAME}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost {recipe.HOST_NAME}\n::1 localhost\n")
    (etc / "fstab").write_text("# Mounted by /etc/init.d/rcS.\n")
    (etc / "quarl-built").write_text(f"{built}\n")
    shutil.copy(recipe.GUEST_FILES / "sshd_config", etc / "ssh" / "sshd_config")
    shutil.copy(recipe.GUEST_FILES / "inittab", etc / "inittab")
    scripts = etc / "init.d"
    scripts.mkdir(exist_ok=True)
    for name in ("rcS", "rcK", "quarl-up"):
        shutil.copy(recipe.GUEST_FILES / name, scripts / name)
        (scripts / name).chmod(0o755)
    sbin = root / "sbin"
    for name in ("init", "poweroff", "reboot", "halt"):
        (sbin / name).unlink(missing_ok=True)
        (sbin / name).symlink_to("/bin/busybox")
    for name in ("proc", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    systemd.configure(root)


def _keep_modules(root: Path, version: str) -> None:
    """Drop the modules that neither machine loads, and write modules.dep for the rest."""
    folder = root / "lib" / "modules" / version
    for _ in range(2):  # once to know what is needed, once for what is left
        subprocess.run(["depmod", "-b", str(root), version], check=True, env=_PATH)
        needs = parse_dependencies((folder / "modules.dep").read_text())
        names = [name for drivers in recipe.DRIVERS.values() for name in drivers.names]
        needed_files = {folder / file for file in load_order([*names, *recipe.MORE_MODULES], needs)}
        for file in folder.rglob("*.ko"):
            if file not in needed_files:
                file.unlink()


def _compile_python(root: Path) -> None:
    """Byte code for the guest's library: it cannot write there itself, and compiling under emulation takes seconds."""
    library = root / "usr" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if library.is_dir():  # the same series as ours, so that our byte code is the guest's
        compileall.compile_dir(
            library,
            quiet=2,
            stripdir=str(root),
            workers=os.cpu_count() or 1,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
