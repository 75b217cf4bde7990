"""A newcomer's checkout, in a folder with a space, with an environment of its own; and what is typed there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900


@dataclass(frozen=True)
class Ended:
    """How a typed command ended.

    Attributes:
        command: as typed.
        status: its exit status.
        text: what it printed, both streams.
    """

    command: str
    status: int
    text: str

    def is_one_clear_message(self) -> None:
        """It failed, says so in a few lines, and shows none of the program's insides."""
        assert self.status != 0, f"{self.command} ended well:\n{self.text}"
        assert "Traceback" not in self.text and "RuntimeError" not in self.text, self.text
        assert self.message, f"{self.command} said nothing"

    @property
    def message(self) -> str:
        """The last lines without make's own."""
        own = [line for line in self.text.splitlines() if line.strip() and not line.startswith("make")]
        return "\n".join(own[-4:])


@dataclass
class Workshop:
    """The checkout.

    Attributes:
        folder: where it lies.
        environment: variables of the commands typed in it.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def typed(
        self,
        command: str,
        *,
        interrupted_at: str | None = None,
        wait_s: float = 0.0,
        folder: Path | None = None,
        **variables: str,
    ) -> Ended:
        """Type a command in the checkout.

        Args:
            interrupted_at: press Ctrl-C when this pattern is found in the output,
            wait_s: and so many seconds have passed since.
            folder: type it there instead.
            variables: of the environment.
        """
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder or self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        impatient = threading.Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
        impatient.start()
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if interrupted_at is not None and re.search(interrupted_at, "".join(lines)):
                time.sleep(wait_s)
                os.killpg(process.pid, signal.SIGINT)
                interrupted_at = None
        status = process.wait()
        impatient.cancel()
        text = "".join(lines)
        assert interrupted_at is None, f"{command} never printed {interrupted_at}:\n{text}"
        return Ended(command, status, text)

    def holdings(self) -> dict[str, str]:
        """What must not be lost: every file of bundles and results, with its hash."""
        kept = [
            path
            for top in ("artifacts", "results", "zoo", "docs", "README.md")
            for path in [self.folder / top, *(self.folder / top).rglob("*")]
            if path.is_file() and not {".training", "local-device"} & set(path.parts) and path.name != "results.jsonl"
        ]
        return {str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}

    def lost_since(self, before: dict[str, str]) -> list[str]:
        """Files that are gone or are another's now; empty while only new ones came."""
        now = self.holdings()
        return [name for name, digest in before.items() if now.get(name) != digest]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """The checkout as it is committed next."""
    made = checked_out(tmp_path_factory.mktemp("first hour") / "my project")
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


def checked_out(folder: Path) -> Workshop:
    """Every file that git knows or would add, copied into a folder. Its environment is this one, linked, since nothing
    is fetched in a test; only where the project lies is its own."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():  # quarl/ holds links to the rooms
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    environment = (ROOT / ".venv").resolve()  # of a worktree it may be a link
    linked = subprocess.run(["cp", "-al", environment, folder / ".venv"], capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(folder / ".venv", ignore_errors=True)
        subprocess.run(["cp", "-a", environment, folder / ".venv"], check=True)
    python = folder / ".venv" / "bin" / "python"
    in_place = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(folder)]
    subprocess.run(in_place, check=True)
    stamp = folder / ".venv" / ".installed"
    stamp.unlink(missing_ok=True)  # linked: writing into it would write into this checkout's
    stamp.write_text(f"{folder}\n")
    names = ("HOME", "LANG", "SSL_CERT_FILE", "XDG_CACHE_HOME", "TMPDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    system = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    return Workshop(folder, {**kept, "PATH": system, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"})
