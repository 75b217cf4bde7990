"""The plugin of bench/qemu_counter on patterns and loops worked by hand, and on a real policy."""

from __future__ import annotations

import ctypes
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from quarl.bench import instructions
from quarl.bench.command_line import BenchError
from quarl.bench.qemu_counter import building, counting, sysroot
from quarl.bench.qemu_counter.counting import COLUMNS, PAIR, PATHS, Counted, median, parse_lines, summarise_counts
from quarl.bench.qemu_counter.guest import marker_code
from tests.refusals import refused

# `.ci/run` installs both.
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
needs_qemu = pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="needs QEMU: apt-get install qemu-user")

SHIM = """
#include <stdlib.h>
#include "cache.h"
#define EXPORT __attribute__((visibility("default")))
EXPORT void *new_cache(uint64_t bytes, unsigned ways)
{ struct cache *c = malloc(sizeof *c); cache_init(c, bytes, ways); return c; }
EXPORT int use(void *c, uint64_t line) { return cache_use(c, line); }
EXPORT void *new_core(void) { struct core *c = malloc(sizeof *c); core_init(c); return c; }
EXPORT void fetch(void *c, uint64_t address) { core_fetch(c, address); }
EXPORT void data(void *c, uint64_t address, uint64_t bytes) { core_access(c, address, bytes); }
EXPORT void empty(void *c) { core_empty(c); }
EXPORT uint64_t misses(struct core *c, int which)
{
    return (uint64_t[]){c->l1i_misses, c->l1d_misses, c->l2_instruction_misses, c->l2_data_misses,
                        c->l2_random_misses}[which];
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The plugin's own cache model, compiled for this machine."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    building.compile_shared(folder / "shim.c", folder / "shim.so")
    library = ctypes.CDLL(str(folder / "shim.so"))
    for name in ("new_cache", "new_core"):
        getattr(library, name).restype = ctypes.c_void_p
    library.new_cache.argtypes = [ctypes.c_uint64, ctypes.c_uint]
    library.use.argtypes = library.fetch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.data.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    library.empty.argtypes = [ctypes.c_void_p]
    library.misses.argtypes, library.misses.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_uint64
    return library


def misses(model: ctypes.CDLL, core: int) -> list[int]:
    """[L1I, L1D, L2 of instructions, L2 of data]."""
    return [model.misses(core, which) for which in range(4)]


@needs_gcc
def test_the_line_used_longest_ago_is_replaced(model: ctypes.CDLL) -> None:
    cache = model.new_cache(256, 2)  # two sets of two lines: even lines share a set, odd ones the other
    used = [model.use(cache, line) for line in (0, 2, 0, 4, 0, 2, 1, 4, 1)]
    # 0, 2: empty set. 0: there. 4 replaces 2. 0: there. 2 replaces 4. 1: other set. 4 replaces 0. 1: there.
    assert used == [0, 0, 1, 0, 1, 0, 0, 0, 1]


@needs_gcc
def test_five_lines_in_a_set_of_four_miss_l1_and_hit_l2(model: ctypes.CDLL) -> None:
    core = model.new_core()
    for _ in range(3):
        for index in range(5):
            model.data(core, 0x10000 + 8192 * index, 8)  # 32 KB in 4 ways: 8,192 bytes later is the same set
    assert misses(model, core) == [0, 15, 0, 5]
    for _ in range(3):
        for index in range(4):
            model.data(core, 0x10000 + 8192 * index, 8)
    assert misses(model, core)[1] == 15 + 4  # four fit


@needs_gcc
def test_three_pieces_of_code_that_share_a_set_of_two_always_miss(model: ctypes.CDLL) -> None:
    core = model.new_core()
    for _ in range(2):
        for index in range(3):
            model.fetch(core, 0x400000 + 16384 * index)  # 32 KB in 2 ways
    assert misses(model, core) == [6, 0, 3, 0]


@needs_gcc
@pytest.mark.parametrize(
    ("kilobytes", "second_pass"),
    [
        (32, (0, 0)),  # fits into L1
        (256, (4096, 0)),  # 4,096 lines: not into L1, but into L2
        (600, (9600, 9600)),  # 9,600 lines over 512 sets of 16: each set has 18 or 19, and the oldest goes first
    ],
)
def test_reading_twice_in_order(model: ctypes.CDLL, kilobytes: int, second_pass: tuple[int, int]) -> None:
    core = model.new_core()
    lines = kilobytes * 1024 // 64
    for _ in range(2):
        first = misses(model, core)
        for address in range(0, kilobytes * 1024, 64):
            model.data(core, address, 16)
    assert first == [0, lines, 0, lines]
    assert (misses(model, core)[1] - lines, misses(model, core)[3] - lines) == second_pass


@needs_gcc
def test_where_chance_decides_part_of_what_is_too_large_stays(model: ctypes.CDLL) -> None:
    random_misses = []
    for kilobytes in (256, 600, 600):
        core = model.new_core()
        for _ in range(8):
            before = model.misses(core, 4)
            for address in range(0, kilobytes * 1024, 64):
                model.data(core, address, 16)
        random_misses.append(model.misses(core, 4) - before)
    fits, too_large, again = random_misses
    assert fits == 0
    # 9,600 lines in 8,192 places: at least 1,408 have no place; with the oldest first, all 9,600 miss.
    assert 1_408 <= too_large < 9_600 // 2
    assert again == too_large  # the same chance in every run


@needs_gcc
def test_an_access_across_the_end_of_a_line_uses_both(model: ctypes.CDLL) -> None:
    core = model.new_core()
    model.data(core, 0x103C, 8)
    assert misses(model, core) == [0, 2, 0, 2]
    model.data(core, 0x1040, 8)
    assert misses(model, core) == [0, 2, 0, 2]
    model.empty(core)
    model.data(core, 0x1040, 8)
    assert misses(model, core) == [0, 3, 0, 3]


TURNS = 100
LOOP = [
    0xD2800000 | TURNS << 5,  # mov x0, #100
    0xF94003E2,  # again: ldr x2, [sp]
    0xA94013E3,  # ldp x3, x4, [sp]       two registers, one load
    0xF81C03E2,  # stur x2, [sp, #-64]    the line before
    0xF1000400,  # subs x0, x0, #1
    0x54FFFF81,  # b.ne again
]
LEAVE = [0xD2800BA8, 0xD2800000, 0xD4000001]  # exit(0)
BEGIN, END, EMPTY_CACHES = 0xD5032C1F, 0xD5032C3F, 0xD5032C5F  # hint #0x60, #0x61, #0x62


def program(code: list[int]) -> bytes:
    """A statically linked AArch64 executable of these instructions, at 0x400080: the beginning of a line."""
    start, size = 0x80, 4 * len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(2, 183, 1),  # executable, AArch64
        *(0x400000 + start, 64, 0, 0, 64, 56, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, start + size, start + size, 0x1000)
    return (header + segment).ljust(start, b"\0") + struct.pack(f"<{len(code)}I", *code)


@needs_gcc
@needs_qemu
def test_a_loop_is_counted_to_the_instruction(tmp_path: Path) -> None:
    counted = [BEGIN, *LOOP, END]
    (tmp_path / "loop").write_bytes(program([*counted, *counted, EMPTY_CACHES, *counted, *LEAVE]))
    (tmp_path / "loop").chmod(0o755)
    building.compile_shared(building.SOURCES[0], tmp_path / "counter.so")
    out = tmp_path / "counts"
    command = [*counting.qemu_command(tmp_path, tmp_path / "counter.so", str(out)), str(tmp_path / "loop")]
    subprocess.run(command, check=True, timeout=60)
    first, second, third = parse_lines(out.read_text())
    in_loop = {
        "instructions": 1 + 5 * TURNS,
        "loads": 2 * TURNS,
        "stores": TURNS,
        "load_bytes": (8 + 16) * TURNS,
        "store_bytes": 8 * TURNS,
    }
    # The first two stretches lie in one line of code, the third in the next; the stack is used in two lines.
    nothing = {"l1i_misses": 0, "l1d_misses": 0, "l2_instruction_misses": 0, "l2_data_misses": 0, "l2_random_misses": 0}
    everything = {
        "l1i_misses": 1,
        "l1d_misses": 2,
        "l2_instruction_misses": 1,
        "l2_data_misses": 2,
        "l2_random_misses": 3,
    }
    assert first == Counted(**in_loop, **everything)
    assert second == Counted(**in_loop, **nothing)
    assert third == Counted(**in_loop, **everything)


@needs_gcc
@needs_qemu
def test_a_program_for_another_processor_is_refused(tmp_path: Path) -> None:
    building.compile_shared(building.SOURCES[0], tmp_path / "counter.so")
    command = ["qemu-x86_64", "-plugin", f"{tmp_path / 'counter.so'},out={tmp_path / 'counts'}", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "it must be for aarch64" in done.stderr


def test_a_marker_is_a_hint_and_the_return_of_its_object() -> None:
    words = struct.unpack("<5I", marker_code(0x60))
    assert words[0] == BEGIN
    assert words[-1] == 0xD65F03C0  # ret


def test_medians_are_numbers_that_were_counted_less_the_empty_pair() -> None:
    def row(instructions: int, misses: int = 0) -> Counted:
        return Counted(**{**dict.fromkeys(COLUMNS, 5), "instructions": instructions, "l1d_misses": misses})

    labels = ["warm-up", PAIR, PAIR, PAIR, *(path for path in PATHS for _ in range(4))]
    rows = [row(9), row(100), row(102), row(101, 7), *(row(n, 4) for _ in PATHS for n in (1000, 4000, 2000, 3000))]
    paths, pair = summarise_counts(rows, labels)
    assert (pair.instructions, pair.l1d_misses) == (101, 0)
    assert (paths["runtime_warm"].instructions, paths["runtime_warm"].l1d_misses) == (2000 - 101, 4)
    assert paths["decide_cold"].loads == 0
    assert median([row(3), row(1)]).instructions == 1
    with refused(BenchError, "regions_miscounted", shows=["20", "19"]):
        summarise_counts(rows, labels[:-1])
    with pytest.raises(BenchError, match="10 numbers"):
        parse_lines("1 2 3\n")


def test_the_guest_sees_a_raspberry_pi_3bs_processor() -> None:
    files = sysroot.describe_processor()
    assert files["proc/cpuinfo"].count("CPU part\t: 0xd03") == 4
    assert files["sys/devices/system/cpu/possible"] == "0-3\n"
    sizes = [files[f"sys/devices/system/cpu/cpu3/cache/index{index}/number_of_sets"] for index in range(3)]
    assert [int(size) for size in sizes] == [128, 256, 512]


def test_all_missing_packages_are_named_in_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "PROGRAMS", {"no-such-qemu": "qemu-user", "no-such-compiler": "gcc"})
    assert instructions.main(["--policy", "I", "--results", str(tmp_path / "results.jsonl")]) == 1
    assert "sudo apt-get install --no-install-recommends qemu-user gcc" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.slow
@needs_gcc
@needs_qemu
def test_a_real_policy_is_counted_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not sysroot.place().exists():
        pytest.skip("a test fetches nothing: quarl bench instructions --prepare")
    common = ["--policy", "I", "--runtime", "litert", "--results", str(tmp_path / "results.jsonl"), "--json"]

    def counted(precisions: str) -> list[dict[str, dict[str, int]]]:
        assert instructions.main([*common, "--precision", precisions]) == 0
        return [report["counts"]["paths"] for report in json.loads(capsys.readouterr().out)["reports"]]

    fp32, int8 = counted("fp32,int8")
    assert counted("int8") == [int8]
    warm, cold = int8["runtime_warm"], int8["runtime_cold"]
    # 11,840 multiply-accumulates: at most one for each instruction's 16 lanes, and Python around it.
    assert 11_840 // 16 < warm["instructions"] < 100_000
    assert warm["load_bytes"] > 11_840  # every weight is read
    assert fp32["runtime_warm"]["load_bytes"] > warm["load_bytes"] + 2 * 11_840
    assert warm["l2_data_misses"] < 50 < 11_840 // 64 < cold["l2_data_misses"]
    assert int8["decide_warm"]["instructions"] > 2 * warm["instructions"]
