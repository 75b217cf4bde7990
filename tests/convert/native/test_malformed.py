"""An artifact that was damaged, or made to do harm, is refused or runs: no access outside of what it was given, nothing
undefined, as gcc's sanitizers see it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from quarl.convert.native.layout import HEAD_BYTES, LAYER_BYTES, FileRecord, LayerRecord
from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import HERE, SOURCES
from quarl.device.engine.engine import Engine, NativeError, library, memory_needed
from quarl.policy.spec import Precision
from tests.convert.native.networks import FLOAT_PRECISIONS, FLOATS, made, random_floats
from tests.convert.native.random_networks import LayerPlan, Plan, built

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
MISTAKES, FEW = 3_000, 500
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
FLAGS = "-std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off -fno-math-errno"
ODD = Plan(19, 5, (LayerPlan(23, 8, "table"), LayerPlan(70, 2, "linear", zero=90), LayerPlan(9, 4, "norm"),
                   LayerPlan(3, 8, "linear", zero=128)), continuous=True)  # fmt: skip
ARTIFACTS = (
    *("relu", "relu, 4 bits", "relu, 2 bits", "tanh", "norm, silu", "norm, leaky_relu", "limited", "no hidden layer"),
    *("picture and vector", "picture and vector, 2 bits", "picture, tanh", "each its own, 4 bits", "everything"),
    *("gru", "lstm", "three", "normalised"),
    *(f"fp32 {name}" for name in ("norm", "leaky", "limited tanh", "lstm", "picture")),
    "fp16 no vector",
    *("w8 gru", "w4 norm", "w8 picture", "dynamic relu", "dynamic lstm"),
)


@pytest.fixture(scope="module")
def malformed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled for this machine."""
    program = tmp_path_factory.mktemp("malformed") / "malformed"
    source = Path(__file__).with_name("malformed.c")
    command = ["gcc", *FLAGS.split(), *SANITIZERS, "-I.", *SOURCES, str(source), "-lm", "-o", str(program)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return program


def artifact(name: str) -> bytes:
    precision, _, network_name = name.partition(" ")
    if precision in {kind.value for kind in FLOAT_PRECISIONS}:
        return random_floats(FLOATS[network_name], Precision(precision)).artifact
    spec, network, _ = built(ODD) if name == "everything" else made(name)
    return native_artifact(spec, network)


def ran(program: Path, path: Path, first: int, count: int) -> int:
    """How many of these mistakes were accepted, and ran."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [str(program), str(path), str(first), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr.rpartition(chr(13))[2][:3000]}"
    refused, accepted = map(int, done.stdout.split())
    assert refused + accepted == count
    return accepted


@pytest.mark.parametrize("first", [0, pytest.param(FEW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ARTIFACTS)
def test_a_mistake_is_refused_or_does_no_harm(malformed: Path, name: str, first: int, tmp_path: Path) -> None:
    (tmp_path / "artifact").write_bytes(artifact(name))
    last = (MISTAKES // 3 if "picture" in name else MISTAKES) if first else FEW
    accepted = ran(malformed, tmp_path / "artifact", first, last - first)
    assert first or FEW // 50 < accepted < FEW // 2, "most mistakes are seen, and those that are none are tried"


def sharing(layers: int, width: int) -> bytes:
    """An artifact whose layers, convolutions of an image of one pixel and a last dense one, have the same arrays."""
    arrays = HEAD_BYTES + LAYER_BYTES * layers
    multiplier, number, weights = arrays + 4 * width, arrays + 8 * width, arrays + 8 * width + 64
    last = LayerRecord(2, width, width, width, weights, arrays, multiplier)
    convolution = replace(last, height=1, width=1, channels=width, side=1, stride=1)
    size = weights + width * width // 4
    head = FileRecord(size, layers, width, width, 0, 0, 1, *(number,) * 4, 0, 1.0, 0, -128, 0.0, 0, 0, 1.0, 0)
    records = [convolution.pack_record()] * (layers - 1) + [last.pack_record()]
    return b"".join([head.pack_record(), *records, bytes(8 * width + 64), b"\x55" * (width * width // 4)])


def test_shared_weights_get_no_more_memory_than_the_size_allows() -> None:
    width, few = 2048, sharing(2, 2048)
    assert 0 < memory_needed(library(), few) < 2**26 + 8 * len(few)
    Engine(library(), few, width, width)
    many = sharing(64, width)
    if memory_needed(library(), many):  # no kernels of this processor unpack weights
        assert memory_needed(library(), many) < 2**23
    else:
        with pytest.raises(NativeError, match="its layers share arrays"):
            Engine(library(), many, width, width)


def test_the_sanitizers_see_an_access_outside(malformed: Path, tmp_path: Path) -> None:
    source = tmp_path / "outside.c"
    source.write_text(
        "#include <stdlib.h>\nint main(int n, char **v) { (void)v; char *p = malloc(64); return p[63 + n]; }\n"
    )
    program = tmp_path / "outside"
    subprocess.run(["gcc", *SANITIZERS, str(source), "-o", str(program)], check=True, timeout=300)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode and "heap-buffer-overflow" in done.stderr
