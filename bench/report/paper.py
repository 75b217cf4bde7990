"""The deployment figures that the QuaRL paper prints for a Raspberry Pi 3b (4× Cortex-A53 at 1.2 GHz, 1 GB).

Source: QuaRL, deployment case study (also in its slides). Its networks and task are not ours and its success rates
come without intervals; they stand beside our figures as the paper's, and nothing is computed from both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperFigure:
    """One cell pair of the paper's table: latency in milliseconds, success as a fraction."""

    latency_ms: float
    success: float


PAPER: dict[tuple[str, str], PaperFigure] = {
    ("I", "fp32"): PaperFigure(0.147, 0.60),
    ("I", "int8"): PaperFigure(0.124, 0.45),
    ("II", "fp32"): PaperFigure(133.49, 0.74),
    ("II", "int8"): PaperFigure(9.53, 0.60),
    ("III", "fp32"): PaperFigure(208.115, 0.86),
    ("III", "int8"): PaperFigure(11.036, 0.75),
}
PAPER_DEVICE = "Raspberry Pi 3b"
