"""What libraries print from C is kept quiet, also where the output is no terminal and C keeps it until the end."""

import subprocess
import sys

PROGRAM = """
import ctypes
from quarl.train.quiet import suppress_output
libc = ctypes.CDLL(None)
libc.puts(b"before")
with suppress_output():
    libc.puts(b"argv[0]=")
print("after")
"""


def test_nothing_printed_from_c_appears_when_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "before\nafter\n"
