"""Several threads at one decision: the same levels, outputs and choices, however they come and go, and none stays."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.native.writer import native_artifact
from quarl.device.agent.native_executor import NativeExecutor
from quarl.device.agent.protocol import AgentError
from quarl.device.agent.runtimes import open_artifact
from quarl.device.engine import building
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, Mode, NativeError, kernels_here
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.reference import IntegerNetwork
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import Activation, ContinuousHead, NetworkSpec, PolicySpec, RuntimeName, Squash
from tests.convert.native.networks import BASE, case, levels_of, outputs_of, quantized
from tests.refusals import refused

WIDE = replace(BASE, network=NetworkSpec((4100, 300)))
SPECS = {
    "relu": WIDE,
    "tanh": replace(WIDE, network=NetworkSpec((4100, 300), Activation.TANH)),
    "norm": replace(WIDE, network=NetworkSpec((4100, 300), layer_norm=True)),
    "two pairs, then one more": replace(WIDE, network=NetworkSpec((1030, 290, 1100, 270), Activation.LEAKY_RELU)),
    "the second of a pair decides": replace(
        WIDE, network=NetworkSpec((33, 270, 1025)), head=ContinuousHead((-1.0,) * 9, (2.0,) * 9, Squash.CLIP)
    ),
}
ALONE = {"norm": 0}
"""Those without a pair; of all others there is one at least."""
SECONDS = 30.0
Made = tuple[PolicySpec, IntegerNetwork, np.ndarray]


def made(name: str, bits: int) -> Made:
    if name == "III":
        bundle = Bundle.load(ZOO / "III")
        rows = bundle.golden().observations[::100]
        return bundle.spec, quantize_network(bundle.spec, bundle.weights(), bundle.calibration()[:64], bits), rows
    spec = SPECS[name]
    network, rows = quantized(spec, bits, np.random.default_rng([bits, len(name)]))
    return spec, network, rows[3:9]


def engine_of(spec: PolicySpec, network: IntegerNetwork, threads: int) -> Engine:
    return Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size, threads)


def threads_here() -> int:
    """Of this process, as the kernel counts them."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("name", [*SPECS, "III"])
def test_they_compute_what_policy_integer_computes(name: str, bits: int) -> None:
    spec, network, rows = made(name, bits)
    wanted, (outputs, choices) = levels_of(spec, network, rows), outputs_of(spec, network, rows)
    for threads in (1, 2, 3, 4):
        engine = engine_of(spec, network, threads)
        assert len(engine.helpers) == (threads - 1) * ALONE.get(name, 1)
        for kernels in kernels_here(library()):
            engine.use(kernels)
            for modes in (engine.modes, *((mode,) * len(engine.modes) for mode in Mode)):
                engine.modes = modes
                for index, row in enumerate(rows):
                    assert engine.decide(row) == choices[index]
                    np.testing.assert_array_equal(engine.outputs, outputs[index])
                for layers, levels in enumerate(wanted):
                    np.testing.assert_array_equal(
                        engine.levels(rows[-1], layers), levels[-1], err_msg=f"layer {layers}"
                    )
        engine.close(SECONDS)


@pytest.mark.parametrize("pause", [0.0, 0.003])
def test_decisions_in_a_row_and_after_threads_slept(pause: float) -> None:
    spec, network, rows = made("two pairs, then one more", 8)
    outputs, choices = outputs_of(spec, network, rows)
    engine = engine_of(spec, network, 4)
    for count in range(60 if pause else 3000):
        time.sleep(pause)
        index = count % len(rows)
        assert engine.decide(rows[index]) == choices[index]
        np.testing.assert_array_equal(engine.outputs, outputs[index])
    engine.close(SECONDS)


def test_they_come_and_go_and_decisions_are_made_without_them() -> None:
    spec, network, rows = made("two pairs, then one more", 2)
    outputs, choices = outputs_of(spec, network, rows)
    for count in range(60):
        engine = engine_of(spec, network, 2 + count % 3)
        helpers = engine.helpers
        for index in range(count % len(rows)):
            assert engine.decide(rows[index]) == choices[index]
        if count % 7 == 0:
            time.sleep(0.005)  # asleep by now
        engine.close(SECONDS)
        assert not any(helper.is_alive() for helper in helpers) and engine.decide(rows[0]) == choices[0]
        np.testing.assert_array_equal(engine.outputs, outputs[0])


def test_they_end_when_the_executor_is_dropped() -> None:
    spec, network, rows = made("tanh", 8)
    gc.collect()
    before = threads_here()
    executor = open_artifact(RuntimeName.NATIVE, native_artifact(spec, network), spec, 4)
    executor.decide(rows[:1])
    assert isinstance(executor, NativeExecutor) and threads_here() == before + 3
    helpers = [each for each in threading.enumerate() if each is not threading.main_thread() and each.daemon]
    del executor
    for helper in helpers:
        helper.join(SECONDS if helper.name.endswith("(_work)") else 0.0)
    assert not any(each.is_alive() for each in helpers if each.name.endswith("(_work)"))


def test_waiting_threads_do_not_keep_a_process_and_forks_do_without(tmp_path: Path) -> None:
    spec, network, rows = made("tanh", 4)
    (tmp_path / "artifact").write_bytes(native_artifact(spec, network))
    np.save(tmp_path / "rows.npy", rows)
    script = f"""
        import os, sys, time
        import numpy as np
        from pathlib import Path
        from quarl.device.engine.engine import Engine
        place = Path(sys.argv[1])
        rows = np.load(place / "rows.npy")
        artifact = (place / "artifact").read_bytes()
        engine = Engine(Path({str(library())!r}), artifact, {spec.observation_size}, {spec.output_size}, 4)
        before = [engine.decide(row) for row in rows]
        time.sleep(float(sys.argv[2]))
        child = os.fork()
        if child == 0:
            os._exit(before != [engine.decide(row) for row in rows])
        print(os.waitpid(child, 0)[1], before == [engine.decide(row) for row in rows], len(engine.helpers))
    """
    lines = "\n".join(line[8:] for line in script.splitlines())
    for pause in ("0", "0.1"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", lines, str(tmp_path), pause],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, b"0 True 3\n"), done.stderr.decode()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
@pytest.mark.slow
def test_without_python_they_sleep_in_the_kernel_and_wake(tmp_path: Path) -> None:
    program = tmp_path / "threads"
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-pthread", "-I."]
    sources = [*building.SOURCES, str(Path(__file__).with_name("threads.c"))]
    subprocess.run(["gcc", *flags, *sources, "-o", str(program)], cwd=building.HERE, check=True, timeout=300)
    for name, bits in (("two pairs, then one more", 8), ("III", 2), ("tanh", 4)):
        done = subprocess.run(
            [str(program)], input=case(*made(name, bits)), capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()


@pytest.mark.parametrize("threads", [5, 64])
def test_more_than_four_are_refused(threads: int) -> None:
    spec, network, _ = made("tanh", 2)
    artifact = native_artifact(spec, network)
    with refused(AgentError, "bad_field", shows=["1", "4"]):
        open_artifact(RuntimeName.NATIVE, artifact, spec, threads)
    for number in (threads, 0, -1):
        with pytest.raises(NativeError, match="threads must be"):
            Engine(library(), artifact, spec.observation_size, spec.output_size, number)
