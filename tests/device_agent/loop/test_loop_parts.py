"""Frames, their C header, and histograms."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quarl.device.agent import loop
from quarl.device.agent.loop.frames import BODY, HEADER, MAGIC, Description, Flag, Header, Kind, release_number
from quarl.device.agent.loop.library import Library, Options, find_library
from quarl.device.agent.loop.options import LoopOptions, Pace

C_SIDE = """
#include <stdio.h>
#include <stddef.h>
#include "quarl_loop.h"
int main(void) {
  struct quarl_header head = {.magic = QUARL_MAGIC, .kind = QUARL_OBSERVATION, .flags = QUARL_START, .count = 3,
    .sequence = 5, .release = 7, .observed_ns = -11, .sent_ns = 13, .action = -1, .missed = 17};
  fwrite(&head, sizeof head, 1, stdout);
}
"""
SAME = {
    "QUARL_MAGIC": MAGIC,
    "sizeof(struct quarl_description)": HEADER.size + BODY.size,
    **{f"QUARL_{each.name}": each.value for each in (*Kind, *Flag)},
}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
def test_the_c_header_and_the_frames_are_the_same_bytes(tmp_path: Path) -> None:
    asserted = (f'_Static_assert({name} == {value}, "as in Python");\n' for name, value in SAME.items())
    (tmp_path / "side.c").write_text(C_SIDE + "".join(asserted))
    include = Path(loop.__file__).parent
    command = ["gcc", "-Wall", "-Werror", f"-I{include}", "side.c", "-o", "side"]
    subprocess.run(command, cwd=tmp_path, check=True)
    made = subprocess.run([tmp_path / "side"], capture_output=True, check=True).stdout
    assert made == Header(Kind.OBSERVATION, 64, 3, 5, 7, -11, 13, -1, 17).pack()


def test_a_header_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    header = Header(Kind.ACTION, 9, 2, 2**63, 2**64 - 1, -5, 2**62, -1, 2**32 - 1)
    assert Header.read(header.pack()) == header
    assert Header.read(header.pack()[:-1]) is None
    assert Header.read(b"X" + header.pack()[1:]) is None
    assert Header.read(header.pack()[:4] + b"\x00" + header.pack()[5:]) is None
    description = Description(20_000_000, 32, 25, 32, 1)
    assert Description.read(bytes(HEADER.size) + description.pack()) == description


def test_the_hold_time_defaults_to_the_devices() -> None:
    assert LoopOptions(hold_for_ms=200).to_arguments().count("--hold-for-ms=200") == 1
    assert not [word for word in LoopOptions().to_arguments() if "hold-for" in word]


def test_what_is_typed_on_the_host_is_read_on_the_device() -> None:
    library = Library(find_library())
    typed = LoopOptions(rate=20.0, deadline_ms=3.5, pace=Pace.OBSERVATION, fallback=(-1.0, 0.5), core=1, spin_us=40)
    options = library.read_options(["--socket=/run/III.sock", *typed.to_arguments()])
    assert options is not None
    found = {name: getattr(options, name) for name, *_ in Options._fields_}
    assert found == {
        "socket": b"/run/III.sock",
        "precision": None,
        "runtime": None,
        "release": b"",
        "fallback": b"-1,0.5",
        "rate": 20.0,
        "deadline_ms": 3.5,
        "stale_ms": 0.0,
        "hold_for_ms": 0.0,
        "pace": 1,
        "on_miss": 0,
        "priority": 50,
        "core": 1,
        "spin_us": 40,
        "threads": 1,
    }
    separate = library.read_options(["--socket", "/run/III.sock", "--rate", "20"])
    assert separate is not None and (separate.socket, separate.rate) == (b"/run/III.sock", 20.0)
    assert library.read_options(["--help"]) is None
    with pytest.raises(ValueError, match="--priority is 100; allowed are 0 … 99"):
        LoopOptions(priority=100)


@pytest.mark.parametrize(
    ("name", "number"),
    [("0007-1a2b3c4d", 0x000000071A2B3C4D), ("12345-00000000", 12345 << 32), ("bundle", 0), ("0007-1a2b", 0), ("", 0)],
)
def test_a_release_name_is_a_number_of_64_bits(name: str, number: int) -> None:
    assert release_number(name) == number
