"""What keeps a loop punctual on Linux: a real-time priority, memory that stays, a core, sleep until an absolute time.

An ordinary user gets the priority and the locked memory only within limits that root grants; what is not granted is
said, with the lines that grant it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import pwd
import resource
import time
from dataclasses import dataclass

_MCL_CURRENT, _MCL_FUTURE = 1, 2
_TIMER_ABSTIME = 1
_PR_SET_TIMERSLACK = 29

LIMITS = """\
# /etc/security/limits.d/quarl.conf, as root; then: systemctl restart user@{uid} (or log in anew)
{user} - rtprio 99
{user} - memlock unlimited
"""
"""What grants a user, and the services of its own systemd, a real-time priority and locked memory. PAM sets it when the
user's manager starts; a drop-in of user@.service alone does not hold, since Debian's pam_limits resets it."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@dataclass(frozen=True)
class Granted:
    """One thing that was requested of the kernel.

    Attributes:
        name: e.g. ``SCHED_FIFO 50``.
        granted: whether it holds now.
        reason: why not, and what grants it; empty where it does.
    """

    name: str
    granted: bool
    reason: str = ""


def what_grants_it() -> str:
    """The lines that grant this user what it was refused."""
    return LIMITS.format(user=pwd.getpwuid(os.getuid()).pw_name, uid=os.getuid())


def sleep_until(due_ns: int) -> None:
    """Sleep until CLOCK_MONOTONIC reads ``due_ns``, or a signal came."""
    wait = _Timespec(*divmod(due_ns, 1_000_000_000))
    _libc.clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(wait), None)


def prepare(priority: int, core: int | None) -> list[Granted]:
    """Request what keeps this process punctual, and freeze the garbage collector.

    Args:
        priority: 1 to 99 for SCHED_FIFO; 0: the ordinary scheduler.
        core: the only core to run on; None: any.

    Returns:
        What was requested, and whether it was granted.
    """
    requested = [_locked_memory()]
    if core is not None:
        requested.append(_pinned(core))
    if priority:
        requested.append(_first_in_first_out(priority))
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # an ordinary thread's sleeps may else end 50 µs late
    gc.collect()
    gc.freeze()
    gc.disable()  # the loop makes no circles
    return requested


def _locked_memory() -> Granted:
    name = "mlockall"
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    # MCL_FUTURE under a limit makes later allocations fail: only where there is none, or root's capability.
    if hard != resource.RLIM_INFINITY and os.geteuid() != 0:
        return Granted(name, False, f"RLIMIT_MEMLOCK is {hard} bytes")
    if _libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        return Granted(name, False, os.strerror(ctypes.get_errno()))
    return Granted(name, True)


def _pinned(core: int) -> Granted:
    name = f"core {core}"
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        there = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return Granted(name, False, f"{error.strerror}; this process may use {there}")
    return Granted(name, True)


def _first_in_first_out(priority: int) -> Granted:
    name = f"SCHED_FIFO {priority}"
    soft, hard = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (hard, hard))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        limit = f"; RLIMIT_RTPRIO is {hard}" if error.errno == errno.EPERM else ""
        return Granted(name, False, f"{error.strerror}{limit}")
    return Granted(name, True)
