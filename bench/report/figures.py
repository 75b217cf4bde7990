"""What all pictures share: where they lie, their colours, their heading, and how they are written.

Colours are Okabe and Ito's, which colour-blind eyes tell apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.store import RESULTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = RESULTS.parent / "docs" / "figures"
BLUE, GREEN, VERMILLION, PURPLE, GREY = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#6b6b6b"
SKY_BLUE, ORANGE, YELLOW = "#56B4E9", "#E69F00", "#F0E442"


def headed(figure: Figure, title: str, said: str, lines: int) -> None:
    """A title, and under it in grey what the picture shows.

    Args:
        figure: with a constrained layout.
        title: one line.
        said: what stands below it.
        lines: of the title's height that are left free for that.
    """
    figure.suptitle(title + "\n" * lines, fontsize=11, fontweight="bold")
    figure.text(0.5, 1.0 - 0.33 / figure.get_figheight(), said, ha="center", va="top", fontsize=8, color=GREY)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg, the same bytes for the same picture; returns both paths."""
    import matplotlib

    matplotlib.use("Agg")
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context({"svg.hashsalt": "bench"}):
        for suffix, options in (
            (".png", {"dpi": 160, "metadata": {"Software": ""}}),
            (".svg", {"metadata": {"Date": None}}),
        ):
            files.append(stem.with_name(stem.name + suffix))
            figure.savefig(files[-1], facecolor="white", **options)
    return files
