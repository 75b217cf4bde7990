"""``python -m device.virtual_pi``: start, stop and look at emulated Raspberry Pis."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from typing import Any

from quarl.device.deploy.verbs import Verbs, run_verb
from quarl.device.virtual_pi import naming, running
from quarl.device.virtual_pi.image import ensure_image
from quarl.device.virtual_pi.machine import MEMORY_MB, MachineSettings
from quarl.device.virtual_pi.recipe import Init, MachineKind
from quarl.policy.hints import Parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_clock(text: str) -> int:
    """``2025-11-20`` or ``2025-11-20T10:00`` (UTC) as Unix time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date; type 2025-11-20T10:00") from None
    return int(moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp())


def run_start(options: argparse.Namespace) -> tuple[Any, str]:
    """Build the image if needed, start the machine, wait for SSH, print how to log in."""
    kind, init = MachineKind(options.machine), Init(options.init)
    settings = MachineSettings(kind, options.memory, not options.no_swap, options.clock, init)
    begun = running.start(options.name, settings, fresh=options.fresh, tell=_say)
    machine = begun.machine
    took = "runs already" if begun.already else f"is up, SSH lets us in after {begun.seconds:.1f} s"
    lines = [f"{machine.target} {took} ({machine.settings.description})."]
    if begun.host_key_replaced:
        lines.append("  its host key is that of the image just built; the one of the earlier image is forgotten")
    name = "" if machine.name == naming.DEFAULT_NAME else f" --name {machine.name}"
    lines += [
        f"  make deploy TARGET={machine.target}",
        f"  ssh -F {naming.config_file(machine.name)} {machine.target}      (as root: root@{machine.name})",
        f"  console: {begun.serial}",
        "  make pi-stop" if not name else f"  python -m device.virtual_pi stop{name}",
    ]
    return begun, "\n".join(lines)


def run_stop(options: argparse.Namespace) -> tuple[Any, str]:
    """Shut the machine down; its card is kept."""
    names = [machine.name for machine in running.all_running()] if options.all else [options.name]
    stopped = [name for name in names if running.stop(name)]
    text = "\n".join(f"{name} is off." for name in stopped) or "Nothing was running."
    return {"stopped": stopped}, text


def run_reboot(options: argparse.Namespace) -> tuple[Any, str]:
    """Shut the machine down and start it again with the same card."""
    begun = running.reboot(options.name)
    return begun, f"{begun.machine.target} is up again, SSH lets us in {begun.seconds:.1f} s after it went off."


def run_status(options: argparse.Namespace) -> tuple[Any, str]:
    """Say which machines run."""
    machines = running.all_running()
    lines = [
        f"{machine.target}: {machine.settings.description}, 127.0.0.1 port {machine.port}, process {machine.pid}"
        for machine in machines
    ]
    return {"machines": machines}, "\n".join(lines) or "No virtual Pi runs. Type: make pi"


def run_build(options: argparse.Namespace) -> tuple[Any, str]:
    """Build the image if there is none of the present recipe (needs root)."""
    image = ensure_image(_say, rebuild=options.rebuild)
    size = sum(path.stat().st_blocks * 512 for path in image.folder.iterdir())
    return image, f"The image is in {image.folder} ({size / 1e6:.0f} MB, kernel {image.kernel_version})."


def run_clean(options: argparse.Namespace) -> tuple[Any, str]:
    """Remove images, and the cards of machines that do not run."""
    removed = running.clean()
    return {"removed": removed}, "\n".join(f"removed {name}" for name in removed) or "There was nothing to remove."


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = Parser(prog="python -m device.virtual_pi", description="A Raspberry Pi 3b, emulated.")
    verb = Verbs(top)
    starting = verb("start", run_start)
    starting.add_argument(
        "--machine",
        choices=[kind.value for kind in MachineKind],
        default=MachineKind.VIRT.value,
        help="virt (default): fast; raspi3b: QEMU's own Raspberry Pi 3 Model B, with SD card and USB network",
    )
    starting.add_argument("--memory", type=int, default=MEMORY_MB, metavar="MB", help="default: %(default)s, a Pi 3b's")
    starting.add_argument("--no-swap", action="store_true", help="leave the card's 1 GiB swap partition alone")
    starting.add_argument("--fresh", action="store_true", help="begin with an empty card instead of its own")
    starting.add_argument("--clock", type=read_clock, metavar="DATE", help="let it believe in another time (UTC)")
    starting.add_argument(
        "--init",
        choices=[init.value for init in Init],
        default=Init.BUSYBOX.value,
        help="busybox (default): sooner up; systemd: as a Pi has it, for services",
    )
    rebooting = verb("reboot", run_reboot)
    stopping = verb("stop", run_stop)
    stopping.add_argument("--all", action="store_true", help="every virtual Pi that runs")
    for added in (starting, rebooting, stopping):
        added.add_argument("--name", default=naming.DEFAULT_NAME, help="it is then pi@NAME (default: %(default)s)")
    verb("status", run_status)
    verb("build", run_build).add_argument("--rebuild", action="store_true", help="even if there is one; new keys")
    verb("clean", run_clean)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 when it failed (the message says what to do), 2 for wrong usage, 130 interrupted."""
    return run_verb(parser(), argv, "interrupted; nothing is left running")


if __name__ == "__main__":
    sys.exit(main())
