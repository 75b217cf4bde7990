"""The pictures hold every number and cut nothing off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from quarl.bench.case_study_plots import latency_figure, save_figures, success_figure
from quarl.bench.report.document import Report, Transport, Where
from quarl.bench.report.figures import marks
from quarl.bench.report.selection import Selection
from quarl.bench.report.store import StoreError
from quarl.train.intervals import Estimate

Make = Callable[..., Report]
Texts = Callable[[Figure], list[str]]


def measured(latency_report: Make, success_report: Make, policies: str) -> Selection:
    found = [success_report("blind", None, 0.35, artifact=None, runtime="none", where=Where.HOST)]
    for policy in policies.split():
        for precision, p50 in (("fp32", 118_000), ("fp16", 90_000), ("int8", 26_000)):
            found.append(latency_report(policy, precision, p50, transport=Transport.LOOPBACK))
            found.append(success_report(policy, precision, 0.99, episodes=3000, transport=Transport.LOOPBACK))
        found.append(latency_report(policy, "fp32", 1_500_000, runtime="keras", artifact=None, path="call"))
    return Selection.of_target(found)


@pytest.mark.parametrize("policies", ["I", "I II III"])
def test_no_label_is_cut_and_all_is_said(
    latency_report: Make, success_report: Make, texts: Texts, policies: str
) -> None:
    selection = measured(latency_report, success_report, policies)
    success = texts(success_figure(selection))
    assert sum("n=3,000" in text for text in success) == 3 * len(policies.split())
    assert any("the paper's" in text for text in success)
    assert any("blind" in text for text in success)
    assert any("loopback" in text and "Cortex-A53" in text for text in success)
    assert any("[98." in text or "[99." in text for text in success)
    latency = texts(latency_figure(selection))
    assert sum("n=1,000" in text for text in latency) == 4 * len(policies.split())
    assert any("26.0 µs" in text for text in latency)
    assert any("loopback" in text for text in latency)
    assert any("Keras model(x) (host)" in text for text in latency)


def test_files_are_written_and_the_same_again(tmp_path: Path, latency_report: Make, success_report: Make) -> None:
    selection = measured(latency_report, success_report, "I")
    files = save_figures(selection, tmp_path)
    assert sorted(file.name for file in files) == ["latency.png", "latency.svg", "success.png", "success.svg"]
    before = {file: file.read_bytes() for file in files}
    save_figures(selection, tmp_path)
    assert {file: file.read_bytes() for file in files} == before


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(StoreError, match=r"bench success"):
        success_figure(Selection(()))
    with pytest.raises(StoreError, match=r"bench latency"):
        latency_figure(Selection(()))


def test_no_time_of_an_emulated_device_is_drawn(latency_report: Make, success_report: Make, tmp_path: Path) -> None:
    emulated = {**latency_report().device, "emulated": True}
    reports = [make("I", "fp32", device=emulated) for make in (latency_report, success_report)]
    blind = success_report("blind", None, 0.35, artifact=None, runtime="none", where=Where.HOST)
    files = save_figures(Selection.of_target([*reports, blind]), tmp_path)
    assert {file.stem for file in files} == {"success"}


def test_an_estimate_without_an_interval_has_neither_bar_nor_caps() -> None:
    axes = Figure().subplots()
    marks(axes, [(0.0, Estimate(1.0)), (1.0, Estimate(2.0, 2.0, 2.0)), (2.0, Estimate(3.0, 2.0, 4.5))], 0, None)
    (container,) = axes.containers
    _, caps, (bars,) = container
    assert [[y for y in line.get_ydata() if y == y] for line in caps] == [[2.0], [4.5]]
    drawn = [path.vertices[:, 1].tolist() for path in bars.get_paths() if len(path.vertices)]
    assert [ends for ends in drawn if ends[0] == ends[0]] == [[2.0, 4.5]]
