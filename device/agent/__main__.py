"""Start the agent: ``python -m device.agent --bundle PATH``. See :mod:`device.agent.protocol`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NamedTuple

# Before numpy is imported: one thread is enough for what the agent does with it, and each costs memory.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from quarl.device.agent import AGENT_VERSION  # noqa: E402
from quarl.device.agent.protocol import BLANKS, MAX_LINE_BYTES, AgentError, ErrorCode, encode  # noqa: E402
from quarl.device.agent.server import Agent, error_reply  # noqa: E402

DRAIN_BYTES = 65536
MOST_THREADS = 64


class Options(NamedTuple):
    """How the agent is started."""

    bundle: Path
    manifest: str = ""
    threads: int = 1


def options_of(arguments: list[str]) -> Options:
    """Return the options, as a release's starter types them: ``--name value`` or ``--name=value``.

    Raises:
        SystemExit: they are wrong, or ask for help; argparse says so. It is loaded for that alone: it takes a megabyte.
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    values = dict(zip(words[::2], words[1::2]))
    threads = values.get("--threads", "1")
    known = len(words) == 2 * len(values) and values.keys() <= {"--bundle", "--manifest", "--threads"}
    if not known or "--bundle" not in values or not threads.isdecimal() or not 1 <= int(threads) <= MOST_THREADS:
        return _parse_arguments(arguments)
    return Options(Path(values["--bundle"]), values.get("--manifest", ""), int(threads))


def _parse_arguments(arguments: list[str]) -> Options:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m device.agent",
        description="Execute and measure a quantized policy on this device. One JSON object a line on stdin, "
        "one reply a line on stdout.",
        epilog='Then type {"op": "help"}.',
    )
    parser.add_argument("--bundle", required=True, type=Path, help="folder of the policy's bundle")
    parser.add_argument("--manifest", default="", metavar="SHA256", help="refuse a bundle with another manifest.json")
    parser.add_argument("--threads", type=int, default=1, help="threads of the inference runtime (default 1)")
    parser.add_argument("--version", action="version", version=f"device agent {AGENT_VERSION}")
    options = parser.parse_args(arguments)
    if not 1 <= options.threads <= MOST_THREADS:
        parser.error(f"--threads is {options.threads}; allowed is 1 to {MOST_THREADS}")
    return Options(**vars(options))


def main(argv: list[str] | None = None) -> int:
    """Serve requests from stdin until it ends. Returns the exit code: 0, or 2 for wrong arguments."""
    options = options_of(sys.argv[1:] if argv is None else argv)
    if sys.stdin is None:  # started with it closed: the input has ended already
        return 0
    replies = take_stdout()
    signal.signal(signal.SIGTERM, _terminate)

    def emit(line: bytes) -> None:
        write_all(replies, line)

    agent = Agent(options.bundle, options.threads, emit, options.manifest)
    if sys.stdin.isatty():
        print('Type {"op": "help"} and Enter, or Ctrl-D to end.', file=sys.stderr)
    try:
        agent.ready()
        serve(agent, sys.stdin.buffer, emit)
    except BrokenPipeError:  # the client is gone
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


def serve(agent: Agent, requests: BinaryIO, emit: Callable[[bytes], None]) -> None:
    """Answer line by line until the end of input or ``bye``."""
    while not agent.ended:
        line = requests.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = requests.readline(DRAIN_BYTES)
            error = AgentError(
                ErrorCode.LINE_TOO_LONG,
                f"the line is longer than {MAX_LINE_BYTES} bytes.",
                "Send fewer observations in one request.",
            )
            emit(encode({"ok": False, "op": None, "error": error_reply(error)}))
        elif line.strip(BLANKS):
            emit(agent.handle(line))


def take_stdout() -> int:
    """Keep standard output for replies alone; returns its private file descriptor.

    Runtimes print what they like from C++. From here on descriptor 1 is the log, so that no stray line is ever taken
    for a reply.
    """
    private = os.dup(1)
    os.set_inheritable(private, False)
    os.dup2(2, 1)
    return private


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, however long."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
