"""The report as a reader sees it: opened from a file in headless Chromium, wide and narrow, page by page.

A check that finds nothing proves nothing by itself, so each is shown a report that is broken in its way.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from quarl.bench.page import command as html_report
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT as ROOT
from quarl.train.runs.logs import CURVE_FILE
from tests.bench.report.chromium import LOOK, WIDTHS, Browser, needs_chromium, opened, requested_urls, resized, started

pytestmark = needs_chromium
Write = Callable[..., Bundle]

LINKS = """
const faults = [], seen = new Set();
for (const element of document.querySelectorAll("[id]")) {
  if (seen.has(element.id)) faults.push("id given twice: " + element.id);
  seen.add(element.id);
}
for (const link of document.querySelectorAll("a")) {
  const where = link.getAttribute("href") || "";
  if (!where.startsWith("#")) faults.push("link out of the file: " + where);
  else if (!seen.has(where.slice(1))) faults.push("link to nowhere: " + where);
}
return faults;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the committed results and bundles."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(
        ROOT / "results", folder / "results", ignore=shutil.ignore_patterns("results.*", "*.html", "weights")
    )
    output = folder / "report.html"
    assert html_report.main(["--results", str(folder / "results"), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, balancing: Write) -> str:
    """The report of one bundle, with a picture: how it learned."""
    folder = tmp_path_factory.mktemp("small")
    bundle = balancing(folder / "zoo" / "balancing")
    (bundle.path / CURVE_FILE).write_text("step,return\n0,1\n10,2\n20,9\n")
    output = folder / "small.html"
    arguments = ["--results", str(folder / "results"), "--zoo", str(folder / "zoo"), "--output", str(output)]
    assert html_report.main(arguments) == 0
    return output.read_text(encoding="utf-8")


def faults(browser: Browser, path: Path) -> list[str]:
    """What a reader would stumble over, on the whole report and on every policy's page, at each width."""
    opened(browser, path.as_uri())
    found = list(browser.execute_script(LINKS))
    pages = [element.get_attribute("id") for element in browser.find_elements(By.CSS_SELECTOR, "section.page")]
    for width in WIDTHS:
        resized(browser, width)
        for anchor in ("top", *pages):
            browser.execute_script("location.hash = arguments[0]", anchor)
            found += [f"{anchor}: {fault}" for fault in browser.execute_async_script(LOOK)]
    found += [f"console: {entry['level']} {entry['message']}" for entry in browser.get_log("browser")]
    found += [f"asked for {url}" for url in requested_urls(browser)]
    return found


@pytest.mark.slow
def test_a_reader_stumbles_over_nothing(browser: Browser, report: Path) -> None:
    assert faults(browser, report) == []


@pytest.mark.slow
def test_every_bundle_has_its_page_and_every_result_its_section(browser: Browser, report: Path) -> None:
    opened(browser, report.as_uri())
    titles = [str(each.get_attribute("textContent")) for each in browser.find_elements(By.CSS_SELECTOR, ".page > h2")]
    bundles = [path.parent.name for path in (ROOT / "zoo").glob("**/manifest.json")]
    assert sorted(titles) == sorted(f"Policy {name}" for name in bundles)
    assert browser.find_elements(By.CSS_SELECTOR, "section:has(> .missing)") == []
    unmeasured = {f"policy-{path.name.lower()}" for path in (ROOT / "zoo" / "memory").iterdir()}  # no rows are kept
    for page in browser.find_elements(By.CSS_SELECTOR, "section.page"):
        name = page.get_attribute("id")
        assert page.find_elements(By.TAG_NAME, "img"), name
        assert page.find_elements(By.TAG_NAME, "table") or name in unmeasured, name


@pytest.mark.slow
def test_a_page_is_shown_alone_and_left_again(browser: Browser, report: Path) -> None:
    opened(browser, report.as_uri())
    resized(browser, 1400)
    overview = browser.find_element(By.CLASS_NAME, "overview")
    page = browser.find_element(By.ID, "policy-cartpole-dqn")
    assert (overview.is_displayed(), page.is_displayed()) == (True, False)
    browser.find_element(By.CSS_SELECTOR, "#policies a[href='#policy-cartpole-dqn']").click()
    assert (overview.is_displayed(), page.is_displayed()) == (False, True)
    page.find_element(By.CSS_SELECTOR, ".back a").click()
    assert (overview.is_displayed(), page.is_displayed()) == (True, False)
    browser.back()
    assert (overview.is_displayed(), page.is_displayed()) == (False, True)


@pytest.mark.slow
def test_the_keyboard_reaches_links_and_boxes_that_scroll(browser: Browser, report: Path) -> None:
    opened(browser, report.as_uri())
    resized(browser, 360)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("textContent") == "To the contents"
    overflowing = browser.execute_script(
        "return [...document.querySelectorAll('*')].filter(each => each.checkVisibility() && "
        "each.scrollWidth > each.clientWidth + 1 && ['auto', 'scroll'].includes(getComputedStyle(each).overflowX)"
        ").map(each => each.tabIndex)"
    )
    assert overflowing
    assert set(overflowing) == {0}


def without_policy(html: str) -> str:
    """The report without its Content-Security-Policy, so that what it forbids happens."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)


def cut_off(html: str) -> str:
    """The first figure's data end in the middle."""
    return re.sub(r'(<img src="data:[^"]{2000})[^"]*"', r'\1"', html, count=1)


BLANK = 'src="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 width=%2299%22 height=%2299%22/%3E"'
BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "figure cut off": (cut_off, "not rendered"),
    "blank figure": (lambda html: re.sub(r'src="data:[^"]*"', BLANK, html, count=1), "blank"),
    "script refused": (lambda html: html.replace("</main>", "</main><script>1</script>"), "Content Security Policy"),
    "script that throws": (
        lambda html: without_policy(html).replace("</main>", "</main><script>throw new Error('broken')</script>"),
        "broken",
    ),
    "picture from the network": (
        lambda html: without_policy(html).replace("</main>", "<img src='http://example.org/x.png' alt='x'></main>"),
        "asked for http://example.org/x.png",
    ),
    "too wide": (
        lambda html: html.replace("</main>", f"<pre>{'x' * 400}</pre></main>"), "pixels too wide at 1400"
    ),
    "dead link": (lambda html: html.replace("</main>", "<a href='#nowhere'>x</a></main>"), "link to nowhere: #nowhere"),
    "link out": (
        lambda html: html.replace("</main>", "<a href='https://example.org'>x</a></main>"), "link out of the file"
    ),
    "anchor given twice": (lambda html: html.replace("</main>", "<p id='top'></p></main>"), "id given twice: top"),
    "table without rows": (lambda html: re.sub(r"<tbody>.*?</tbody>", "", html, flags=re.DOTALL), "table without rows"),
    "heading left out": (lambda html: re.sub(r"<h2 .*?</h2>", "", html), "heading h3 after h1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(name: str, browser: Browser, small: str, tmp_path: Path) -> None:
    breaking, message = BROKEN[name]
    broken = breaking(small)
    assert broken != small
    path = tmp_path / "broken.html"
    path.write_text(broken, encoding="utf-8")
    found = faults(browser, path)
    assert any(message in fault for fault in found), found


def test_the_small_report_that_is_broken_above_is_whole(browser: Browser, small: str, tmp_path: Path) -> None:
    path = tmp_path / "whole.html"
    path.write_text(small, encoding="utf-8")
    assert faults(browser, path) == []


def test_chromium_that_is_missing_is_named_so_that_ci_fails() -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    assert "apt-get" in pytestmark.kwargs["reason"]
    assert '"apt-get"' in conftest.partition("LACKS = ")[2].partition("\n")[0]
    installed = (ROOT / "setup" / "debian.txt").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name} ", installed, re.MULTILINE) for name in ("chromium", "chromium-driver"))
