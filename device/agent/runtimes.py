"""The inference runtimes behind one face. Each is imported only when it is asked for; a process should use one of them.

Order of preference among the installed ones that can execute an artifact:

1. LiteRT: the fastest in every precision on x86 and Arm, and still maintained;
2. tflite-runtime: the same kernels, older; all there is for a 32-bit Pi;
3. onnxruntime: about three times the overhead a call, which is most of a small policy's time;
4. native, the project's own engine, for artifacts of its own: where it is asked for.

Every graph takes "observation" float32 (1, N) and gives "logits" float32 (1, A) and "action" integer (1,);
a continuous policy's graph gives "action" float32 (1, A) alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import os
import sys
from pathlib import Path
from typing import Any

from quarl.device import engine as native
from quarl.device.agent.executing import Executor, runtime_error
from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.policy.spec import PolicySpec, RuntimeName

PREFERENCE = (RuntimeName.LITERT, RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE)

PACKAGES = {
    RuntimeName.LITERT: "ai_edge_litert",
    RuntimeName.TFLITE_RUNTIME: "tflite_runtime",
    RuntimeName.ONNXRUNTIME: "onnxruntime",
}


def find_installed_runtimes() -> dict[RuntimeName, str]:
    """Return the runtimes that are installed here with their versions, in order of preference; none is imported."""
    versions: dict[RuntimeName, str] = {}
    for name in PREFERENCE:
        if name is RuntimeName.NATIVE:
            if native.is_here():
                versions[name] = native.VERSION
            continue
        spec = importlib.util.find_spec(PACKAGES[name])
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations))).parent
            versions[name] = _distribution_version(folder, str(name.distribution))
    return versions


def _distribution_version(folder: Path, distribution: str) -> str:
    # importlib.metadata would import the whole e-mail package for this; the folder's name says it too.
    prefix = distribution.replace("-", "_") + "-"
    for entry in sorted(folder.glob(f"{prefix}*.dist-info")):
        return entry.name.removeprefix(prefix).removesuffix(".dist-info")
    return "unknown"


def find_imported_runtime() -> RuntimeName | None:
    """Return the runtime that this process has imported, if any; one whose import failed leaves its package, but is
    none."""
    return next((name for name in PREFERENCE if _module_of(name) in sys.modules), None)


def _module_of(name: RuntimeName) -> str:
    if name is RuntimeName.NATIVE:
        return "quarl.device.engine.engine"
    return PACKAGES[name] if name is RuntimeName.ONNXRUNTIME else f"{PACKAGES[name]}.interpreter"


def import_runtime(name: RuntimeName) -> Any:
    """Return the runtime's module. onnxruntime is kept from reporting to its maker: this one place imports it.

    Raises:
        AgentError: UNAVAILABLE: it is not installed or cannot be loaded here; says why and which ones are installed.
    """
    # onnxruntime 1.31 otherwise writes a device id and a database into ~/.cache and sends events from a thread.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        if name is RuntimeName.NATIVE:
            from quarl.device.engine import engine  # by name, so that it is found to be a part of a release

            return engine
        return importlib.import_module(_module_of(name))
    except Exception as error:  # a wheel for another C library or numpy raises whatever it likes
        installed = (
            ", ".join(f"{other.value} {version}" for other, version in find_installed_runtimes().items()) or "none"
        )
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"the runtime {name.value} cannot be imported here ({type(error).__name__}: {error}); "
            f"installed are: {installed}.",
            way_to_install(name),
        ) from error


def way_to_install(name: RuntimeName) -> str:
    """Advice to type where a runtime is missing."""
    return f"Type: pip install {name.distribution}" if name.distribution else "Deploy the policy with RUNTIME=native."


def open_artifact(name: RuntimeName, model: Path | bytes | mmap.mmap, spec: PolicySpec, threads: int = 1) -> Executor:
    """Load an artifact into a runtime.

    Args:
        name: the runtime.
        model: the artifact's bytes, verified; or its path, which a runtime maps, so that whoever changes the file
            changes what is decided; or for the native engine a mapping of its bytes, verified.
        spec: the policy; the graph's inputs and outputs must be its.
        threads: threads of the runtime.

    Raises:
        AgentError: UNAVAILABLE (no such runtime here) or RUNTIME (the runtime refuses the graph, or the graph is not
            one of this policy).
    """
    module = import_runtime(name)
    try:
        if name is RuntimeName.NATIVE:
            from quarl.device.agent.native_executor import (
                NativeExecutor,  # numpy or the engine's face: what is used alone
            )

            return NativeExecutor(module, model, spec, threads)
        from quarl.device.agent.graph_executors import LiteExecutor, OnnxExecutor

        assert not isinstance(model, mmap.mmap)
        if name is RuntimeName.ONNXRUNTIME:
            return OnnxExecutor(module, model, spec, threads)
        return LiteExecutor(module, model, spec, threads)
    except AgentError:
        raise
    except Exception as error:  # each runtime has errors of its own kinds
        raise runtime_error(name, error) from error
