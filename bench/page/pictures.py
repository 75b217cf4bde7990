"""matplotlib's figures as SVG in data: URIs: the report is one file, and ids of two pictures cannot meet."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ROUNDED = ("d", "x", "y")  # attributes in points; two decimals are a hundredth of a point. Scales stay as they are.
PLAIN = " !$&'()*+,/:;=?@[]"  # need no escape in a data: URI; < > " % and # do
NARROW, WIDE = 560, 760  # CSS pixels: a picture wider than this is scrolled on a small screen


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        data: a data: URI.
        width, height: its natural size in CSS pixels.
    """

    data: str
    width: int
    height: int

    @classmethod
    def of(cls, figure: Figure) -> Picture:
        """Draw a figure."""
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        return cls(data_uri(svg_of(figure)), width, height)

    @property
    def size(self) -> str:
        """The class of the width: ``narrow``, ``medium`` or ``wide``."""
        return "narrow" if self.width <= NARROW else "medium" if self.width <= WIDE else "wide"


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
