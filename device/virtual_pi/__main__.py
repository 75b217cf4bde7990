"""``quarl pi``: start, stop and look at emulated Raspberry Pis."""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from quarl import cli
from quarl.device.deploy.hostkeys.named_hosts import config_file
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.image import ensure_image
from quarl.device.virtual_pi.machine import MEMORY_MB, MachineSettings
from quarl.device.virtual_pi.recipe import Init, MachineKind


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_clock(text: str) -> int:
    """``2025-11-20`` or ``2025-11-20T10:00`` (UTC) as Unix time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no date; type 2025-11-20T10:00") from None
    return int(moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp())


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """A verb of all machines.

    Attributes:
        json: print JSON, an object a line
    """

    json: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Named(Options):
    """A machine.

    Attributes:
        name: it is then pi@NAME
    """

    name: str = running.DEFAULT_NAME


@Parameter(name="*")
@dataclass(kw_only=True)
class Start(Named):
    """A machine to start.

    Attributes:
        machine: virt is fast; raspi3b is QEMU's own Raspberry Pi 3 Model B, with SD card and USB network
        memory: MB
        no_swap: leave the card's 1 GiB swap partition alone
        fresh: begin with an empty card instead of its own
        clock: DATE, its clock at the start (UTC)
        init: busybox boots faster; systemd has services, as on a Pi
    """

    machine: Literal["virt", "raspi3b"] = "virt"
    memory: PositiveInt = MEMORY_MB
    no_swap: bool = False
    fresh: bool = False
    clock: Annotated[int | None, cli.reads(read_clock, "DATE")] = None
    init: Init = Init.BUSYBOX


@Parameter(name="*")
@dataclass(kw_only=True)
class Stop(Named):
    """A machine to stop.

    Attributes:
        all: every virtual Pi that runs
    """

    all: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Build(Options):
    """The card's image.

    Attributes:
        rebuild: even if there is one; new keys
    """

    rebuild: bool = False


@cli.verb(left="nothing is left running.")
def start(options: Start) -> tuple[Any, str]:
    """Build the image if needed, start the machine, wait for SSH, print how to log in.

    quarl pi start
    quarl pi start --machine raspi3b --name slow
    """
    settings = MachineSettings(
        MachineKind(options.machine), options.memory, not options.no_swap, options.clock, options.init
    )
    begun = running.start(options.name, settings, fresh=options.fresh, tell=_say)
    machine = begun.machine
    took = "runs already" if begun.already else f"is up, SSH lets us in after {begun.seconds:.1f} s"
    lines = [f"{machine.target} {took} ({machine.settings.description})."]
    if begun.host_key_replaced:
        lines.append("  its host key is that of the image just built; the one of the earlier image is forgotten")
    name = "" if machine.name == running.DEFAULT_NAME else f" --name {machine.name}"
    lines += [
        f"  make deploy TARGET={machine.target}",
        f"  ssh -F {config_file(machine.name)} {machine.target}      (as root: root@{machine.name})",
        f"  console: {begun.serial}",
        "  make pi-stop" if not name else f"  quarl pi stop{name}",
    ]
    return begun, "\n".join(lines)


@cli.verb(left="nothing is left running.")
def stop(options: Stop) -> tuple[Any, str]:
    """Shut the machine down; its card is kept.

    quarl pi stop
    quarl pi stop --all
    """
    names = [machine.name for machine in running.all_running()] if options.all else [options.name]
    stopped = [name for name in names if running.stop(name)]
    text = "\n".join(f"{name} is off." for name in stopped) or "Nothing was running."
    return {"stopped": stopped}, text


@cli.verb(left="nothing is left running.")
def reboot(options: Named) -> tuple[Any, str]:
    """Shut the machine down and start it again with the same card.

    quarl pi reboot
    quarl pi reboot --name slow
    """
    begun = running.reboot(options.name)
    return begun, f"{begun.machine.target} is up again, SSH lets us in {begun.seconds:.1f} s after it went off."


@cli.verb(left="nothing is left running.")
def status(options: Options) -> tuple[Any, str]:
    """List the running machines.

    quarl pi status
    quarl pi status --json
    """
    machines = running.all_running()
    lines = [
        f"{machine.target}: {machine.settings.description}, 127.0.0.1 port {machine.port}, process {machine.pid}"
        for machine in machines
    ]
    return {"machines": machines}, "\n".join(lines) or "No virtual Pi runs. Type: make pi"


@cli.verb(left="nothing is left running.")
def build(options: Build) -> tuple[Any, str]:
    """Build the image if there is none of the present recipe (needs root).

    quarl pi build
    quarl pi build --rebuild
    """
    image = ensure_image(_say, rebuild=options.rebuild)
    size = sum(path.stat().st_blocks * 512 for path in image.folder.iterdir())
    return image, f"The image is in {image.folder} ({size / 1e6:.0f} MB, kernel {image.kernel_version})."


@cli.verb(left="nothing is left running.")
def clean(options: Options) -> tuple[Any, str]:
    """Remove images, and the cards of machines that do not run.

    quarl pi clean
    quarl pi clean --json
    """
    removed = running.clean()
    return {"removed": removed}, "\n".join(f"removed {name}" for name in removed) or "There was nothing to remove."


main = cli.of("pi")

if __name__ == "__main__":
    raise SystemExit(main())
