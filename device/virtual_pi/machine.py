"""QEMU's command line for the two machines: the fast one with a Pi's processor, and QEMU's own Raspberry Pi 3B."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quarl.device.virtual_pi.errors import StartError
from quarl.device.virtual_pi.image import Image
from quarl.device.virtual_pi.recipe import Init, MachineKind

QEMU = "qemu-system-aarch64"
MEMORY_MB = 1024
SMALLEST_MEMORY_MB = 128
RASPI3B_MEMORY_MB = 1024
"""QEMU's raspi3b has this much, no more, no less."""


@dataclass(frozen=True)
class MachineSettings:
    """What may differ from start to start."""

    kind: MachineKind = MachineKind.VIRT
    memory_mb: int = MEMORY_MB
    swap: bool = True
    """Whether the card's swap partition is in use."""
    clock_unix: int | None = None
    """What the machine believes the time to be when it starts; None: the right time."""
    init: Init = Init.BUSYBOX
    """Who is process 1: busybox starts sooner and takes less memory, systemd is what a Pi has."""

    def __post_init__(self) -> None:
        if self.kind is MachineKind.RASPI3B and self.memory_mb != RASPI3B_MEMORY_MB:
            raise StartError(
                f"--memory {self.memory_mb}: the machine raspi3b always has {RASPI3B_MEMORY_MB} MB.",
                "--machine virt takes any memory.",
            )
        if self.memory_mb < SMALLEST_MEMORY_MB:
            raise StartError(
                f"--memory {self.memory_mb}: Debian does not boot in less than {SMALLEST_MEMORY_MB} MB.",
                f"--memory {MEMORY_MB} is a Pi 3b's.",
            )

    @property
    def description(self) -> str:
        """The machine in a clause."""
        model = {MachineKind.VIRT: "QEMU virt", MachineKind.RASPI3B: "QEMU's Raspberry Pi 3 Model B"}[self.kind]
        swap = "with" if self.swap else "without"
        return f"{model}, 4 emulated Cortex-A53, {self.memory_mb} MB, {swap} swap, {self.init.value}"


def kernel_arguments(settings: MachineSettings) -> str:
    """The kernel's command line. Words that begin with quarl. are read by guest/initrd-init and guest/quarl-up."""
    virt = settings.kind is MachineKind.VIRT
    words = [
        # The Raspberry Pi's first serial line belongs to Bluetooth; its console is the small one.
        "console=ttyAMA0" if virt else "console=ttyS1",
        f"root=/dev/{'vda2' if virt else 'mmcblk0p2'}",
        "panic=-1",  # a kernel that fails ends QEMU (-no-reboot) instead of hanging
        f"quarl.machine={settings.kind.value}",
        f"quarl.swap={'on' if settings.swap else 'off'}",
    ]
    if settings.init is Init.SYSTEMD:
        words += ["quarl.init=/lib/systemd/systemd", "systemd.show_status=false"]
    if settings.clock_unix is not None:
        words.append(f"quarl.clock={settings.clock_unix}")
    return " ".join(words)


def command(settings: MachineSettings, image: Image, card: Path, serial: Path, port: int) -> list[str]:
    """The command that starts a machine with that card, whose console is written to ``serial`` and whose SSH port
    appears as ``127.0.0.1:port``."""
    drive = f"file={escape(card)},format=qcow2,discard=unmap"
    network = f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22"
    words = [
        *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", kernel_arguments(settings)),
        *("-netdev", network),
    ]
    if settings.kind is MachineKind.VIRT:
        # romfile= : nothing boots from the network, so that no Debian package with boot ROMs is needed.
        return [
            *words,
            *("-machine", "virt", "-cpu", "cortex-a53", "-smp", "4", "-m", str(settings.memory_mb)),
            *("-accel", "tcg,thread=multi", "-serial", f"file:{serial}"),
            *("-drive", f"if=none,id=card,{drive}", "-device", "virtio-blk-pci,drive=card,romfile="),
            *("-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"),
        ]
    # An SD card has no command that flushes it, so each write reaches the file as it is made, references to new blocks
    # included: a machine that is killed leaves the file system as it was. (Whether the host syncs is up to the host.)
    drive += ",cache.writeback=off,cache.no-flush=on"
    return [
        *words,
        *("-machine", "raspi3b", "-accel", "tcg,thread=multi", "-dtb", str(image.device_tree)),
        *("-serial", "null", "-serial", f"file:{serial}"),
        *("-drive", f"if=sd,{drive}", "-device", "usb-net,netdev=net"),
    ]


def escape(path: Path) -> str:
    """A path inside a QEMU option, where a comma ends a value unless doubled."""
    return str(path).replace(",", ",,")
