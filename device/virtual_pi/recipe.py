"""What goes into the image, in one place, and the hash of it: another recipe is another image."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SUITE = "bookworm"
"""Debian 12, what Raspberry Pi OS bookworm is made of: Python 3.11, glibc 2.36."""

PACKAGES = (
    "linux-image-arm64",
    *("base-files", "base-passwd", "netbase", "tzdata"),
    *("libc6", "libc-bin", "libstdc++6", "libgcc-s1", "libgomp1", "libatomic1"),  # what the runtimes' wheels link to
    *("openssh-server", "openssh-sftp-server"),
    "python3",
    *("busybox-static", "kmod", "bash", "dash", "coreutils", "findutils", "grep", "sed", "tar", "gzip"),
    *("util-linux", "mount", "procps"),
    *("systemd", "dbus", "libpam-systemd", "cron"),  # what keeps a service running, with systemd and without
)

GUEST_FILES = Path(__file__).with_name("guest")
_MAKERS = ("recipe.py", "image.py", "card.py", "initrd.py", "systemd.py")
"""The modules whose text decides what an image looks like."""


class MachineKind(Enum):
    """The machines that the image boots on."""

    VIRT = "virt"
    RASPI3B = "raspi3b"


class Init(Enum):
    """Who is process 1."""

    BUSYBOX = "busybox"
    SYSTEMD = "systemd"


@dataclass(frozen=True)
class Drivers:
    """Kernel modules of one machine, loaded in the initial RAM disk; what they depend on comes along."""

    names: tuple[str, ...]


_EXT4 = ("crc32c_generic", "ext4")  # ext4 asks for the checksum by name, which modules.dep does not say
DRIVERS = {
    MachineKind.VIRT: Drivers(("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", *_EXT4)),
    # Without the watchdog's module the Raspberry Pi has no way to power off, and hangs.
    MachineKind.RASPI3B: Drivers(
        ("bcm2835", "sdhci_iproc", "phy_generic", "dwc2", "cdc_ether", "bcm2835_rng", "bcm2835_wdt", *_EXT4)
    ),
}
MORE_MODULES = ("zram",)
"""Modules that lie on the card for whoever wants them; the others of Debian's 300 MB are left out."""

USER, USER_ID = "pi", 1000
HOST_NAME = "virtual-pi"
DEVICE_TREE = "bcm2837-rpi-3-b.dtb"


def recipe_hash() -> str:
    """Twelve hexadecimal digits that change with anything that goes into an image."""
    digest = hashlib.sha256(json.dumps([SUITE, PACKAGES]).encode())
    here = Path(__file__).parent
    for path in [*sorted(GUEST_FILES.iterdir()), *(here / name for name in _MAKERS)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
