"""Numbers as people read them, and templates of sentences that hold them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from quarl.bench.report.intervals import Correlation
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from jinja2 import Environment

NOT_KNOWN = "–"
NEGLIGIBLE_PERCENT = 0.005  # prints as 0.00


def nanoseconds(value: float | None) -> str:
    """Three significant digits in the unit that fits: ``853 ns``, ``1.52 µs``, ``11.0 ms``; never ``0.00``."""
    if value is None:
        return NOT_KNOWN
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if value < 999.5 * size:
            return f"{three_digits(value / size)} {unit}"
    return f"{three_digits(value / 1e9)} s"


def three_digits(value: float) -> str:
    """``0.152``, ``1.52``, ``15.2``, ``152``, ``1,520``."""
    if 0 < abs(value) < 0.995:
        return f"{value:.3g}"
    for limit, decimals in ((9.995, 2), (99.95, 1)):
        if abs(value) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:,.0f}"


def times(value: float | None) -> str:
    """Return a ratio: ``4.52×``."""
    return NOT_KNOWN if value is None else f"{three_digits(value)}×"


def megabytes(value: float | None) -> str:
    """Bytes in MB (10⁶)."""
    return NOT_KNOWN if value is None else f"{value / 1e6:.1f}"


def kilobytes(value: float | None) -> str:
    """Bytes in KB (10³)."""
    return NOT_KNOWN if value is None else three_digits(value / 1e3)


def percent(rate: Estimate | None, sign: str = "") -> str:
    """Return a rate with its interval, percent: ``88.1 [86.9, 89.2]``; of a difference, sign ``+``: ``−0.3 [−0.9,
    +0.3]``."""
    if rate is None:
        return NOT_KNOWN
    ends = (rate.value, rate.low, rate.high)
    value, *sides = (_decimals(100 * end, 1, sign) for end in ends if end is not None)
    return f"{value} [{', '.join(sides)}]" if sides else value


def machine(device: Mapping[str, Any]) -> str:
    """Return the machine that a number was measured on, in one clause."""
    model, cpu = device.get("model"), device.get("cpu_model")
    real, nominal_mhz = device.get("mhz_firmware") or device.get("mhz_now"), device.get("mhz_nominal")
    clock = f"{real or nominal_mhz:.0f} MHz" if real or nominal_mhz else ""
    if real and nominal_mhz and abs(real - nominal_mhz) > 0.05 * nominal_mhz:
        clock = f"{nominal_mhz:.0f} MHz asked, {real:.0f} MHz when idle"
    memory = device.get("memory_total_bytes")
    cores = device.get("cores")
    parts = [
        " · ".join(dict.fromkeys(str(name) for name in (model, cpu) if name)) or "unknown processor",
        str(device.get("machine") or ""),
        f"{cores} core{'s' if cores != 1 else ''}" if cores else "",
        clock,
        f"governor {device['governor']}" if device.get("governor") else "",
        f"{memory / 1e9:.1f} GB" if memory else "",
        str(device.get("kernel") or ""),
    ]
    return ", ".join(part for part in parts if part)


def join_distinct(words: Iterable[str]) -> str:
    """Distinct words, in the order of their first appearance."""
    return ", ".join(dict.fromkeys(words)) or NOT_KNOWN


def estimate(found: Estimate | None, factor: float = 1.0, sign: str = "") -> str:
    """``482.1 [477.3, 486.9]``, with as many decimals as three significant digits of the value need.

    Of a single value, and of values that are all the same, there are no brackets; no estimate at all is a dash.
    """
    if found is None:
        return NOT_KNOWN
    value = factor * found.value
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    text = _decimals(value, decimals, sign)
    ends = found.displayed_estimate.low, found.displayed_estimate.high
    sides = [_decimals(factor * end, decimals, sign) for end in ends if end is not None]
    return f"{text} [{', '.join(sides)}]" if sides else text


def format_loss(error: Estimate | None, sign: str = "") -> str:
    """Return a relative error in percent: ``0.92 [0.67, 1.17]``, or ``0`` where nothing changed; likewise a
    difference."""
    ends = () if error is None else (error.value, error.low or 0.0, error.high or 0.0)
    return "0" if ends and max(map(abs, ends)) < NEGLIGIBLE_PERCENT else estimate(error, sign=sign)


def _decimals(value: float, decimals: int, sign: str) -> str:
    text = f"{value:{sign},.{decimals}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else f"{0:.{decimals}f}"


def format_fixed(value: float | None, decimals: int = 0) -> str:
    """With this many decimals: ``−1,234.5``."""
    return NOT_KNOWN if value is None else f"{value:,.{decimals}f}".replace("-", "−")


def figure_words(value: Any) -> str:
    """Return a number with at most four significant digits, integers whole; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOT_KNOWN if value is None else str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


def span(values: Iterable[int]) -> str:
    """``2,000``, or the least and the greatest of different ones: ``300 to 3,000``."""
    distinct_values = sorted(set(values))
    return (
        " to ".join(f"{value:,}" for value in dict.fromkeys((distinct_values[0], distinct_values[-1])))
        if distinct_values
        else NOT_KNOWN
    )


@functools.cache
def environment() -> Environment:
    """Return the environment of templates of sentences and cells; a name that is not there is an error, not an empty
    place.

    Filters: ``several``, ``joined``, ``minus`` (for the hyphen before a number) of words; ``estimate``, ``lost``,
    ``percent``, ``arrow``, ``correlation``; ``average``, ``median``, ``span`` of values; ``machine`` of a device; of
    numbers ``digits``, ``fixed``, ``figure``, ``thousands``, ``times``, ``ns``, ``kb``, ``mb``.
    """
    import jinja2

    jinja_environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    jinja_environment.filters |= {
        "several": several,
        "joined": join_distinct,
        "estimate": estimate,
        "lost": format_loss,
        "percent": percent,
        "arrow": arrow,
        "correlation": correlation,
        "average": fmean,
        "fixed": format_fixed,
        "figure": figure_words,
        "median": median,
        "span": span,
        "machine": machine,
        "minus": lambda text: text.replace("-", "−"),
        "digits": three_digits,
        "thousands": lambda value: f"{value:,}",
        "times": times,
        "ns": nanoseconds,
        "kb": kilobytes,
        "mb": megabytes,
    }
    return jinja_environment


def fill_sentences(template: str, **facts: Any) -> tuple[str, ...]:
    """Return a template's sentences, one a line, with what was measured in them; see :func:`environment`."""
    text = environment().from_string(template).render(**facts)
    return tuple(line for line in text.splitlines() if line.strip())


def several(words: Iterable[str]) -> str:
    """``weights and observation``; ``none`` of nothing."""
    word_list = list(words)
    return " and ".join(filter(None, (", ".join(word_list[:-1]), *word_list[-1:]))) or "none"


def correlation(found: Correlation | None) -> str:
    """``0.60 [0.08, 0.87]``."""
    if found is None:
        return NOT_KNOWN
    rho, low, high = (_decimals(number, 2, "") for number in (found.rho, found.low, found.high))
    return f"{rho} [{low}, {high}]"


def arrow(found: Estimate | None) -> str:
    """Return whether the whole interval lies above or below 0."""
    return {1: " ↑", -1: " ↓", 0: ""}[found.side if found else 0]
