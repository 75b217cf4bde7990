"""One contestant in the environment of `make peers`: a network made and opened by another program, timed in turns.

    PYTHONPATH=. .venv-peers/bin/python bench/peers/worker.py FOLDER ncnn int8

FOLDER holds what bench/peers/network.py writes: observations, the float network, what its layers are fed at most, and
ONNX graphs. Each program gets one thread and one core; it and its model are made before the first decision, which pays
for its input, the inference and the action alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from quarl.bench.peers.turns import Decide, serve, take_core

ONNX = {"fp32": "fp32.onnx", "int8": "int8.onnx"}
NCNN_INT8 = 0x000D4B38
"""Marks weights of one byte in ncnn's file."""


def ncnn_network(folder: Path, precision: str, stored: Mapping[str, np.ndarray]) -> tuple[Path, Path]:
    """ncnn's two files for a perceptron behind its normaliser: a scale, a cut, and fully connected layers."""
    clip = float(stored["clip"])
    size = len(stored["mean"])
    graph = [
        "Input observation 0 1 observation",
        f"Scale scale 1 1 observation scaled 0={size} 1=1",
        f"Clip clip 1 1 scaled x0 0={-clip} 1={clip}",
    ]
    parts = [stored["inverse"], -stored["mean"] * stored["inverse"]]
    kernels = [stored[f"kernel_{index}"].T for index in range(int(stored["layers"]))]  # (out, in)
    for index, kernel in enumerate(kernels):
        relu, int8 = int(index + 1 < len(kernels)), int(precision == "int8")
        words = f"0={len(kernel)} 1=1 2={kernel.size} 8={int8} 9={relu}"
        graph.append(f"InnerProduct dense_{index} 1 1 x{index} x{index + 1} {words}")
        if int8:
            scales = 127.0 / np.maximum(np.abs(kernel).max(axis=1), 1e-12)
            levels = np.clip(np.rint(kernel * scales[:, None]), -127, 127).astype(np.int8).reshape(-1)
            parts += [np.array([NCNN_INT8], "<u4"), levels, np.zeros(-levels.size % 4, np.int8)]
            parts += [stored[f"bias_{index}"], scales, np.array([127.0 / stored[f"largest_{index}"]])]
        else:
            parts += [np.zeros(1, "<u4"), kernel, stored[f"bias_{index}"]]
    text, data = folder / f"ncnn-{precision}.param", folder / f"ncnn-{precision}.bin"
    text.write_text("\n".join(["7767517", f"{len(graph)} {len(graph)}", *graph]) + "\n")
    data.write_bytes(b"".join((p.astype("<f4") if p.dtype.kind == "f" else p).tobytes() for p in parts))
    return text, data


def ncnn(folder: Path, precision: str, stored: Mapping[str, np.ndarray]) -> tuple[Decide, int]:
    """Tencent's ncnn."""
    import ncnn as program

    text, data = ncnn_network(folder, precision, stored)
    net = program.Net()
    net.opt.num_threads = 1
    if net.load_param(str(text)) or net.load_model(str(data)):
        raise SystemExit("ncnn refuses its files")
    last = f"x{int(stored['layers'])}"

    def decide(row: np.ndarray) -> int:
        extractor = net.create_extractor()
        extractor.input("observation", program.Mat(row[0]).clone())  # its first layer writes where it reads
        _, logits = extractor.extract(last)
        return int(np.array(logits).argmax())

    return decide, text.stat().st_size + data.stat().st_size


def mnn(folder: Path, precision: str, stored: Mapping[str, np.ndarray]) -> tuple[Decide, int]:
    """Alibaba's MNN; its int8 are weights of 8 bits."""
    import MNN

    model = folder / f"mnn-{precision}.mnn"
    # Not MNN.tools.mnnconvert, which runs "pip install", and reports to its makers.
    command = [sys.executable, "-c", "import sys, _tools; _tools.mnnconvert(sys.argv)", "-f", "ONNX"]
    command += ["--modelFile", str(folder / ONNX["fp32"]), "--MNNModel", str(model)]
    command += ["--weightQuantBits", "8"] if precision == "int8" else []
    subprocess.run(command, capture_output=True, check=False)  # its exit status says nothing
    if not model.exists():
        raise SystemExit("MNN converts nothing")
    interpreter = MNN.Interpreter(str(model))
    session = interpreter.createSession({"backend": "CPU", "numThread": 1, "memory": "low"})
    fed, logits = interpreter.getSessionInput(session), interpreter.getSessionOutput(session, "logits")
    shape = logits.getShape()
    kind, layout = MNN.Halide_Type_Float, MNN.Tensor_DimensionType_Caffe
    host_tensor = MNN.Tensor(shape, kind, np.zeros(shape, np.float32), layout)

    def decide(row: np.ndarray) -> int:
        fed.copyFrom(MNN.Tensor(row.shape, kind, row, layout))
        interpreter.runSession(session)
        logits.copyToHostTensor(host_tensor)
        return int(host_tensor.getNumpyData().argmax())

    return decide, model.stat().st_size


def openvino(folder: Path, precision: str, stored: Mapping[str, np.ndarray]) -> tuple[Decide, int]:
    """Intel's OpenVINO; its int8 is the QDQ graph that onnxruntime executes."""
    import openvino as program

    graph = folder / ONNX[precision]
    options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = program.Core().compile_model(str(graph), "CPU", options)
    request = compiled.create_infer_request()
    tensor = program.Tensor(np.zeros((1, len(stored["mean"])), np.float32))
    request.set_input_tensor(tensor)
    fed, action = tensor.data, request.get_tensor("action").data

    def decide(row: np.ndarray) -> int:
        fed[:] = row
        request.infer()
        return int(action[0])

    return decide, graph.stat().st_size


PROGRAMS: dict[str, Callable[[Path, str, Mapping[str, np.ndarray]], tuple[Decide, int]]] = {
    "ncnn": ncnn,
    "MNN": mnn,
    "OpenVINO": openvino,
}


def emlearn_source(stored: Mapping[str, np.ndarray]) -> str:
    """Return the C that emlearn writes of the network behind its normaliser; it has no cut, which hardly matters."""
    from emlearn import net

    layers = int(stored["layers"])
    kernels = [stored[f"kernel_{index}"] for index in range(layers)]
    biases = [stored[f"bias_{index}"] for index in range(layers)]
    biases[0] = biases[0] - (stored["mean"] * stored["inverse"]) @ kernels[0]
    kernels[0] = stored["inverse"][:, None] * kernels[0]
    activations = ["relu"] * (layers - 1) + ["identity"]
    written: str = net.c_generate_net_loadable(activations, kernels, biases, prefix="policy")
    return written


def write_executorch(folder: Path, stored: Mapping[str, np.ndarray]) -> str:
    """Write ExecuTorch's programs for XNNPACK, in floats, in int8 with calibrated and with dynamic activations.

    Returns:
        The folder of its package.
    """
    import executorch
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    mean, inverse, clip = torch.tensor(stored["mean"]), torch.tensor(stored["inverse"]), float(stored["clip"])

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            steps: list[torch.nn.Module] = []
            for index in range(int(stored["layers"])):
                dense = torch.nn.Linear(*stored[f"kernel_{index}"].shape)
                dense.weight.data = torch.tensor(np.ascontiguousarray(stored[f"kernel_{index}"].T))
                dense.bias.data = torch.tensor(stored[f"bias_{index}"])
                steps += [dense, torch.nn.ReLU()]
            self.steps = torch.nn.Sequential(*steps[:-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.steps(torch.clamp((x - mean) * inverse, -clip, clip))

    rows = torch.tensor(np.load(folder / "calibration.npy", allow_pickle=False))
    example = (rows[:1],)
    for precision in ("fp32", "int8", "dynamic"):
        model = torch.export.export(Policy().eval(), example).module()
        if precision != "fp32":
            config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=precision == "dynamic")
            model = prepare_pt2e(model, XNNPACKQuantizer().set_global(config))
            for row in rows[:: max(1, len(rows) // 512)]:
                model(row[None])
            model = convert_pt2e(model)
        edge = to_edge_transform_and_lower(torch.export.export(model, example), partitioner=[XnnpackPartitioner()])
        (folder / f"{precision}.pte").write_bytes(edge.to_executorch().buffer)
    return next(iter(executorch.__path__))


def write_emlearn(folder: Path, stored: Mapping[str, np.ndarray]) -> str:
    """Write ``policy.c``; return the folder of the headers that it includes."""
    import emlearn

    (folder / "policy.c").write_text(emlearn_source(stored))
    return str(emlearn.includedir)


WRITERS = {"ExecuTorch": write_executorch, "emlearn": write_emlearn}


def main(folder: Path, program: str, precision: str) -> None:
    """Serve one of them, have one write its files, or print the programs' versions."""
    if program == "versions":
        names = ("ncnn", "MNN", "openvino", "emlearn", "executorch")
        print(", ".join(f"{name} {version(name)}" for name in names))
        return
    stored: dict[str, Any] = dict(np.load(folder / "network.npz", allow_pickle=False))
    if program in WRITERS:
        print(WRITERS[program](folder, stored))
        return
    sys.stdout = os.fdopen(os.dup(1), "w")  # answers; what the programs themselves print is none
    os.dup2(2, 1)
    take_core()
    decide, size = PROGRAMS[program](folder, precision, stored)
    serve(decide, list(np.load(folder / "observations.npy", allow_pickle=False)), size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
