"""Train a policy, quantize it, deploy it to a Raspberry Pi over SSH, and measure it there.

    quarl.load(name or path), quarl.import_policy(file, …)    a Policy: convert, act, evaluate
    quarl.Device(target)                                      deploy, latency, memory, success, rollback, serve, …

The rooms are ``quarl.policy``, ``quarl.train``, ``quarl.convert``, ``quarl.device``, ``quarl.bench`` and
``quarl.airlearning_envs``; in a checkout they are links to its folders. This file goes along to devices: it imports
nothing, in the syntax of Python 3.9.
"""

_PUBLIC = {
    "load": "quarl.api",
    "import_policy": "quarl.api",
    "Policy": "quarl.api",
    "Device": "quarl.api",
    "Artifact": "quarl.results",
    "Conversion": "quarl.results",
    "Evaluation": "quarl.results",
    "Evaluations": "quarl.results",
    "Latency": "quarl.results",
    "Memory": "quarl.results",
    "Success": "quarl.results",
    "Answer": "quarl.results",
}
__all__ = list(_PUBLIC)


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Load the public interface at its first use; ``__import__`` keeps it out of what goes to a device."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'quarl' has no attribute {name!r}")
    return getattr(__import__(_PUBLIC[name], fromlist=[name]), name)


def __dir__():  # type: ignore[no-untyped-def]
    return sorted([*globals(), *_PUBLIC])
