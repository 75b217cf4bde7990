"""The lock of a device without Python: a link, made by a shell that holds it as long as the line to it is open.

To make a link is atomic, and its text names the shell by process id and start time, so that a lock whose shell was
killed is known as such and taken over. On a line that stands still it is held until the device's sshd gives it up.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.on_device.files import HelperError
from quarl.device.deploy.remote_process import EndOfOutputError, LineTimeoutError, RemoteProcess

_START_S, _POLL_S, _MOST_TRIES = 60.0, 0.5, 20
LOOK = r"""
started() { # when a process started, in ticks after boot: field 22 of its stat, 20 after the name
  set -- $(sed "s/.*) //" "/proc/$1/stat" 2>/dev/null)
  [ $# -lt 20 ] || { shift 19 && echo "$1"; }
}
held() { # whether the shell that the lock names still runs
  owner=$(readlink quarl/lock.held) || return 1
  pid=${owner%%.*}
  case $pid in '' | *[!0-9]*) return 0 ;; esac
  [ "$(started "$pid")" = "${owner#*.}" ]
}
"""
_TAKE = r"""
mkdir -p quarl || exit 1
mine=$$.$(started $$)
if ! ln -s "$mine" quarl/lock.held 2>/dev/null; then
  if held; then echo held; cat quarl/lock 2>/dev/null; exit 0; fi
  stale=$(readlink quarl/lock.held) && mv quarl/lock.held "quarl/lock.$$" || { echo again; exit 0; }
  if [ "$(readlink "quarl/lock.$$")" = "$stale" ]; then rm -f "quarl/lock.$$"
  else mv "quarl/lock.$$" quarl/lock.held # another host's, taken meanwhile
  fi
  echo again; exit 0
fi
trap 'rm -f quarl/lock; rm -f quarl/lock.held' EXIT
trap 'exit 1' HUP INT TERM PIPE
rm -rf quarl/lock
printf '%s' "$holder" > quarl/lock
echo taken
while read -r line; do :; done
"""


def take(connection: Connection, by: Mapping[str, Any], wait_s: float) -> RemoteProcess:
    """Take the lock; it is held until the process that is returned ends, by the end of its input.

    Args:
        connection: to the device.
        by: what another host is shown of us.
        wait_s: how long to wait for another to end.

    Raises:
        HelperError: ``locked``, another deployment is at work, with what is known of it.
    """
    deadline = time.monotonic() + wait_s
    holder = json.dumps({**by, "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    script = f'cd -P "$HOME" && umask 077 || exit 1; holder={shlex.quote(holder)}{LOOK}{_TAKE}'
    for _ in range(_MOST_TRIES):
        while True:
            process = connection.start(f"exec sh -c {shlex.quote(script)}")
            try:
                if (answer := _answer(process)) == "taken":
                    return process
                known = _object(process) if answer == "held" else {}
            except BaseException:
                process.close()
                raise
            process.close()
            if answer != "held":
                break  # it was stale
            if time.monotonic() >= deadline:
                raise HelperError("locked", "another deployment is at work here", holder=known)
            time.sleep(_POLL_S)
    raise HelperError("layout", "~/quarl/lock.held is there, and no shell holds it; it must be a symbolic link")


def _answer(process: RemoteProcess) -> str:
    try:
        while True:  # a login shell's start-up files may print before
            line = process.read_line(_START_S)
            if line in (b"taken", b"held", b"again"):
                return line.decode()
    except (EndOfOutputError, LineTimeoutError):
        tail = " / ".join(process.stderr_lines(3)) or "it wrote nothing"
        raise HelperError("os", f"the shell that takes the lock ended: {tail}") from None


def _object(process: RemoteProcess) -> dict[str, Any]:
    try:
        found = json.loads(process.read_rest(_START_S))
    except (ValueError, LineTimeoutError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str | int)} if found else {}
