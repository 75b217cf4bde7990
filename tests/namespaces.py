"""A namespace of its own for a test's command: as root, in a user namespace, and as root of a chroot."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Literal

import pytest

_MOUNTS = """mount -t tmpfs tmpfs "$1" || exit
grep -qF " $1 " /proc/$2/mountinfo; seen=$?
umount "$1"
if [ $seen -eq 0 ]; then echo "what is mounted there is seen here, too" >&2; exit 1; fi"""


def own_namespace(kind: Literal["mount", "net", "pid"]) -> tuple[list[str], str]:
    """The words in front of a command that give it a namespace of its own; where none may be had, no words, and why."""
    words = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), f"--{kind}"]
    ways = [words]
    if kind == "mount":  # in a chroot / is no mount, so unshare cannot make it private: its maker has to have
        ways.append([*words, "--propagation", "unchanged"])
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        tried = ["sh", "-c", _MOUNTS, "sh", folder, str(os.getpid())] if kind == "mount" else ["true"]
        for way in ways:
            try:
                done = subprocess.run([*way, *tried], capture_output=True, text=True)
            except FileNotFoundError:
                return [], "there is no unshare on this machine"
            if done.returncode == 0:
                return way, ""
            printed = done.stderr.strip().rpartition("\n")[2]
    return [], printed or f"no {kind} namespace may be had"


def own(kind: Literal["mount", "net", "pid"]) -> list[str]:
    """The words in front of a command that give it one; where none may be had, the test is left out."""
    words, why = own_namespace(kind)
    if why:
        pytest.skip(f"a {kind} namespace needs root or user namespaces; here it ends with: {why}")
    return words
