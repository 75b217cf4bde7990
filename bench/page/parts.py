"""What the HTML report is made of: sections of tables, pictures and words, each with an anchor of its own.

Pictures are matplotlib's figures as SVG in data: URIs, so that the report is one file, and so that the ids of one
picture cannot meet those of another.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree

from bench.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ROUNDED = ("d", "x", "y")  # attributes in points; two decimals are a hundredth of a point. Scales stay as they are.
PLAIN = " !$&'()*+,/:;=?@[]"  # need no escape in a data: URI; < > " % and # do
NARROW, WIDE = 560, 760  # CSS pixels: a picture wider than this is scrolled on a small screen


@dataclass(frozen=True)
class Words:
    """A paragraph; what stands between backticks is typed or computed. ``link`` (words, anchor) ends it."""

    text: str
    link: tuple[str, str] | None = None


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and what it is."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        title: its caption.
        alt: what it shows, for who does not see it, and where the numbers stand.
        data: a data: URI.
        width, height: its natural size in CSS pixels.
    """

    title: str
    alt: str
    data: str
    width: int
    height: int

    @classmethod
    def of(cls, figure: Figure, title: str, alt: str) -> Picture:
        """Draw a figure."""
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        return cls(title, alt, data_uri(svg_of(figure)), width, height)

    @property
    def size(self) -> str:
        """The class of the width: ``narrow``, ``medium`` or ``wide``."""
        return "narrow" if self.width <= NARROW else "medium" if self.width <= WIDE else "wide"


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown when asked for, and printed always."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Part:
    """Blocks under a heading of their own, within a section or a page."""

    title: str
    blocks: tuple[Block, ...]


Block = Table | Picture | Words | Facts | Folded | Part


@dataclass(frozen=True)
class Section:
    """A section, or a bundle's page.

    Attributes:
        anchor: unique in the report; letters, digits and hyphens.
        title: its heading.
        blocks: what it shows; empty where its results are missing.
        missing: then, why.
        command: what makes its results.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    missing: str = ""
    command: str = ""


@dataclass
class Anchors:
    """Gives out anchors, none twice: two names may differ in nothing but signs that an anchor cannot have."""

    given: set[str] = field(default_factory=set)

    def new(self, words: str) -> str:
        """``bundle pong-ppo`` is ``bundle-pong-ppo``, and ``bundle-pong-ppo-2`` when that is taken."""
        stem = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "part"
        name, number = stem, 1
        while name in self.given:
            number += 1
            name = f"{stem}-{number}"
        self.given.add(name)
        return name


def flat(blocks: Sequence[Block]) -> list[Block]:
    """All blocks, those inside others too."""
    found: list[Block] = []
    for block in blocks:
        found.append(block)
        if isinstance(block, Folded | Part):
            found += flat(block.blocks)
    return found


def svg_of(figure: Figure) -> str:
    """A figure as SVG without metadata and with coordinates of two decimals; the same figure gives the same text."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bench"}):
        figure.savefig(stream, format="svg", facecolor="white", metadata={"Date": None})
    return small(stream.getvalue())


def small(svg: bytes) -> str:
    """An SVG document without comments, metadata and needless decimals.

    Raises:
        ParseError: it is no XML.
    """
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    for child in root.findall(f"{{{SVG}}}metadata"):
        root.remove(child)
    for element in root.iter():
        element.text, element.tail = (text if (text or "").strip() else None for text in (element.text, element.tail))
        for name in ROUNDED:
            if name in element.attrib:
                rounded = re.sub(r"-?\d+\.\d+", _two_decimals, element.attrib[name])
                element.set(name, " ".join(rounded.split()))
    return ElementTree.tostring(root, encoding="unicode")


def _two_decimals(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def data_uri(svg: str) -> str:
    """An SVG document as an address that an <img> shows without any network."""
    return f"data:image/svg+xml,{quote(svg, safe=PLAIN)}"
