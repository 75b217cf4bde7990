"""A stranger's Keras file before Keras loads it: checked, changed to what Keras 3 reads, its process confined."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.zip_members import MOST_BYTES, NEXT_STEP, open_zip

LIMITS = {resource.RLIMIT_CPU: 600, resource.RLIMIT_AS: 16 * 2**30, resource.RLIMIT_FSIZE: 2**31}
"""Seconds and bytes; TensorFlow alone reserves some 4 GiB of addresses, which it never fills."""
REFUSED_EVENTS = {"socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"}
REFUSED_EVENTS |= {"os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"}
MOST_CONFIG_BYTES = 2**24


def check(data: bytes, name: str) -> None:
    """Refuse a file before Keras sees it: it points out of itself, is too large unpacked, or holds weights alone.

    Raises:
        ForeignError: that, or a function of Keras 2 that Keras 3 computes otherwise.
    """
    if name.endswith(".keras"):
        members = open_zip(data, name)
        if "config.json" not in members.names:
            raise ForeignError(f"{name} must contain config.json.", "If another program wrote it, use its ending.")
        for member in members.names:
            if member.endswith((".h5", ".hdf5")):
                _check_hdf5(members.read(member), f"{name}'s {printable(member)}")
        config = members.read("config.json", MOST_CONFIG_BYTES).decode()
        version = json.loads(members.read("metadata.json", MOST_CONFIG_BYTES))["keras_version"]
    else:
        config, version = _check_hdf5(data, name)
        if config is None:
            step = "Rebuild the model in Python, then: model.load_weights(FILE); model.save('policy.keras')."
            raise ForeignError(f"{name} must hold the model's layers, got only weights.", step)
    if not str(version).startswith("3") and '"hard_sigmoid"' in str(config):
        step = "Build it with sigmoid, or write it as ONNX with Keras 2 and tf2onnx."
        raise ForeignError(f"{name} has Keras 2's hard_sigmoid, whose slope differs in Keras 3.", step)


def _check_hdf5(data: bytes, what: str) -> tuple[Any, Any]:
    """Return the config of the model that an HDF5 file holds, and Keras's version, if there is one."""
    import h5py

    size, seen = 0, set[int]()
    with h5py.File(io.BytesIO(data), "r") as file:
        waiting = [file]
        while waiting:
            group = waiting.pop()
            for name in group:
                is_inside = isinstance(group.get(name, getlink=True), h5py.HardLink)
                item: Any = group[name] if is_inside else None
                address = h5py.h5o.get_info(item.id).addr if is_inside else 0
                if isinstance(item, h5py.Dataset):
                    is_inside = not (item.external or item.is_virtual)
                    size += max(item.size or 0, math.prod(item.chunks or ())) * item.dtype.itemsize
                else:
                    waiting.append(item)
                if not is_inside or address in seen:
                    raise ForeignError(f"{what} must hold {printable(name)} itself, and only once.", NEXT_STEP)
                seen.add(address)
                if size > MOST_BYTES:
                    raise ForeignError(f"{what} must have at most {MOST_BYTES} bytes unpacked.", NEXT_STEP)
        return file.attrs.get("model_config"), file.attrs.get("keras_version")


def _modern(found: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a config with the shape of a Sequential model's input as Keras 3 reads it in the first layer."""
    if (shape := found.get("batch_input_shape")) and "sparse" not in found:  # as it is in an InputLayer
        return {**{key: found[key] for key in found if key != "batch_input_shape"}, "input_shape": shape[1:]}
    return found


def modernise(path: Path) -> None:
    """Change what Keras 2 wrote and Keras 3 does not load, or loads otherwise."""
    import h5py

    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            config = json.loads(file.attrs["model_config"], object_hook=_modern)
            if isinstance(layers := config["config"], list):  # 2.1: a Sequential model's layers without its name
                config["config"] = {"name": "policy", "layers": layers}
            file.attrs["model_config"] = json.dumps(config)
        return
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    held = io.BytesIO(parts["model.weights.h5"])
    with h5py.File(held, "r+") as file:  # 2.15 on Windows: a backslash between a folder's name and a layer's
        for name in [name for name in file if "\\" in name]:
            file.move(name, name.replace("\\", "/"))
    config = json.loads(parts["config.json"], object_hook=_modern)
    parts |= {"model.weights.h5": held.getvalue(), "config.json": json.dumps(config).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def limit_process() -> None:
    """Bound this process's time, memory and files."""
    for limit, most in LIMITS.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def confine(folder: Path) -> None:
    """Let this process write in a folder alone, start no program and use no network, from now on."""
    sys.addaudithook(partial(_audit, folder))


def _audit(folder: Path, event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse in an audit hook (PEP 578): no network, no other program, no file that is written elsewhere."""
    writes = event == "open" and isinstance(arguments[0], str) and int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if event in REFUSED_EVENTS or (writes and not Path(arguments[0]).is_relative_to(folder)):
        raise PermissionError(f"{event} {str(arguments[:1])[:100]}, which no model needs")
