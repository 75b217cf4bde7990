"""The deployment figures that the QuaRL paper prints for a Raspberry Pi 3b (4× Cortex-A53 at 1.2 GHz, 1 GB).

Source: QuaRL, deployment case study (also in its slides). Its networks and task are not ours and its success rates
come without intervals; they stand beside our figures as the paper's, and no figure is computed from both. Whether they
agree is said by bench/paper.py.
"""

PAPER_DEVICE = "Raspberry Pi 3b"
PAPER = {
    ("I", "fp32"): (0.147, 0.60),
    ("I", "int8"): (0.124, 0.45),
    ("II", "fp32"): (133.49, 0.74),
    ("II", "int8"): (9.53, 0.60),
    ("III", "fp32"): (208.115, 0.86),
    ("III", "int8"): (11.036, 0.75),
}
"""Figures by policy and precision: latency in milliseconds, success as a fraction."""
SPEED_UPS = {"I": 1.18, "II": 14.0, "III": 18.85}
"""Times as fast as fp32 that the paper prints for int8, by policy."""
