"""The binary frames between a robot's program and the loop: one packet of a Unix SEQPACKET socket each.

Everything is little-endian and packed. A frame is the header, 48 bytes, and what its kind has behind it:

    offset  size  field
    0       4     magic        "QRL1"
    4       1     kind         HELLO, DESCRIPTION, OBSERVATION, ACTION, ECHO
    5       1     flags        see :class:`Flag`
    6       2     count        float32 values behind the header
    8       8     sequence     of an observation, as its sender counts; an action repeats it
    16      8     release      number * 2^32 + first 32 bits of the digest: 0007-1a2b3c4d is 0x000000071a2b3c4d;
                               0 in an observation: any; 0 in an action: the policy is of no release
    24      8     observed_ns  CLOCK_MONOTONIC of the observation; 0 before the first
    32      8     sent_ns      CLOCK_MONOTONIC when the frame was finished
    40      4     action       number of a discrete policy's action; -1 of a continuous one, and of several choices
    44      4     missed       deadlines missed since the loop began, modulo 2^32

OBSERVATION   count values: the raw observation, or of a policy that remembers, the values of one period
ACTION        count values: the logits, or the continuous action; zeros beside a discrete fallback;
              of several choices at once (MultiDiscrete), the numbers of the chosen actions
HELLO         nothing: whoever sends it becomes the controller, and the answer is
DESCRIPTION   period_ns (8), observation_size (4), output_size (4), values of one period (4), discrete (4)
ECHO          anything: it comes back unchanged

A packet that begins with "{" is a JSON request and is answered with one packet of JSON.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAGIC = int.from_bytes(b"QRL1", "little")
HEADER = struct.Struct("<IBBHQQqqiI")
BODY = struct.Struct("<QIIII")
VALUE_BYTES = 4
CONTINUOUS = -1
"""The header's ``action`` of a continuous policy."""
_RELEASE = re.compile(r"(\d+)-([0-9a-f]{8})\Z")


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    DESCRIPTION = 2
    OBSERVATION = 3
    ACTION = 4
    ECHO = 5


class Flag(IntFlag):
    """What holds of an action; START alone is set in an observation."""

    MISSED = 1  # it was ready after its deadline
    STALE = 2  # the observation is too old, or none has come
    NON_FINITE = 4  # NaN or infinity in the observation or in the outputs
    FALLBACK = 8  # the fallback action, not the policy's
    HELD = 16  # the action before, once more
    WRONG_RELEASE = 32  # the observation is for another release than the one that serves
    START = 64  # an episode begins: what was remembered of earlier periods is forgotten
    UNTRAINED = 128  # an element changed that was constant in training; the policy ignores it


@dataclass(frozen=True)
class Header:
    """The header's fields behind the magic number, see the module's docstring."""

    kind: Kind
    flags: int = 0
    count: int = 0
    sequence: int = 0
    release: int = 0
    observed_ns: int = 0
    sent_ns: int = 0
    action: int = CONTINUOUS
    missed: int = 0

    def pack(self) -> bytes:
        """Return the 48 bytes."""
        return HEADER.pack(MAGIC, *vars(self).values())

    @classmethod
    def read(cls, packet: bytes | bytearray | memoryview) -> Header | None:
        """Return the header of a packet, or None where it has none."""
        if len(packet) < HEADER.size:
            return None
        magic, kind, flags, *others = HEADER.unpack_from(packet)
        known = magic == MAGIC and kind in iter(Kind)
        return cls(Kind(kind), flags, *others) if known else None


@dataclass(frozen=True)
class Description:
    """What the loop decides, and how often.

    Attributes:
        period_ns: time between two decisions, ns.
        observation_size: float32 values of a whole observation.
        output_size: float32 values of an action frame.
        brought_size: float32 values of one period: fewer than the observation's where the policy remembers.
        discrete: 1 where the action is an index.
    """

    period_ns: int
    observation_size: int
    output_size: int
    brought_size: int
    discrete: int

    def pack(self) -> bytes:
        """Return the bytes behind the header."""
        return BODY.pack(*vars(self).values())

    @classmethod
    def read(cls, packet: bytes) -> Description:
        """Return the description behind a packet's header."""
        return cls(*BODY.unpack_from(packet, HEADER.size))


def release_number(name: str) -> int:
    """Return a release's name as a frame carries it; 0 for what is no release's name."""
    match = _RELEASE.match(name)
    return 0 if match is None else (int(match[1]) % 2**32) << 32 | int(match[2], 16)
