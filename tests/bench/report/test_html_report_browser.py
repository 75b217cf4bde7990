"""The page as a reader sees it: opened from a file in headless Chromium, on a telephone and on a laptop.

A check that finds nothing proves nothing by itself, so each is shown a page that is broken in its way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from quarl.policy.places import PROJECT_ROOT as ROOT
from tests.bench.report.chromium import LOOK, Browser, needs_chromium, opened, requested_urls, resized, started

pytestmark = needs_chromium
WIDTHS = (360, 390, 1400)  # CSS pixels

LAYOUT = """
const faults = [];
const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
if (document.scrollingElement.scrollWidth > innerWidth) faults.push("the page overflows " + innerWidth);
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect(), name = svg.ariaLabel;
  if (box.left < 0 || box.right > innerWidth || box.width < 280) faults.push("picture cropped: " + name);
  const texts = [...svg.querySelectorAll("text")].map(each => [each.textContent, each.getBoundingClientRect()]);
  if (texts.length < 10 || svg.querySelectorAll("use").length < 6) faults.push("picture empty: " + name);
  texts.forEach(([words, one], index) => {
    if (one.left < box.left - 1 || one.right > box.right + 1 || one.top < box.top - 1 || one.bottom > box.bottom + 1)
      faults.push("label cropped: " + words);
    if (one.height < 8) faults.push("label too small: " + words);
    for (const [others, other] of texts.slice(index + 1))
      if (overlap(one, other)) faults.push(`labels overlap: ${words} and ${others}`);
  });
}
for (const link of document.querySelectorAll("a")) faults.push("link: " + link.href);
return faults;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def faults(browser: Browser, path: Path) -> list[str]:
    """What a reader would stumble over at each width."""
    opened(browser, path.as_uri())
    found: list[str] = []
    for width in WIDTHS:
        resized(browser, width)
        found += browser.execute_async_script(LOOK) + browser.execute_script(LAYOUT)
    found += [f"console: {entry['level']} {entry['message']}" for entry in browser.get_log("browser")]
    found += [f"asked for {url}" for url in requested_urls(browser)]
    return found


def test_a_reader_stumbles_over_nothing(browser: Browser, committed_page: Path) -> None:
    assert faults(browser, committed_page) == []
    assert len(browser.find_elements(By.TAG_NAME, "svg")) == 3


def test_the_keyboard_reaches_boxes_that_scroll(browser: Browser, committed_page: Path) -> None:
    opened(browser, committed_page.as_uri())
    resized(browser, 390)
    overflowing = browser.execute_script(
        "return [...document.querySelectorAll('*')].filter(each => each.scrollWidth > each.clientWidth + 1 && "
        "['auto', 'scroll'].includes(getComputedStyle(each).overflowX)).map(each => each.tabIndex)"
    )
    assert set(overflowing) == {0}


def without_policy(html: str) -> str:
    """The page without its Content-Security-Policy, so that what it forbids happens."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)


def at_end(element: str) -> Callable[[str], str]:
    return lambda html: html.replace("</main>", f"{element}</main>")


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "picture cropped": (lambda html: html.replace('viewBox="0 0 288', 'viewBox="0 0 144'), "label cropped"),
    "picture beyond the screen": (
        lambda html: without_policy(html).replace("<svg ", '<svg style="width: 900px; max-width: none" '),
        "picture cropped",
    ),
    "marks lost": (lambda html: re.sub(r"<use .*?/>", "", html), "picture empty"),
    "labels on each other": (lambda html: html.replace(">10 ms<", ">10 milliseconds<"), "labels overlap: 1 ms"),
    "style of an element": (at_end('<p style="color: red">x</p>'), "Content Security Policy"),
    "script refused": (at_end("<script>1</script>"), "Content Security Policy"),
    "script that throws": (
        lambda html: at_end("<script>throw new Error('broken')</script>")(without_policy(html)), "broken"
    ),
    "picture from the network": (
        lambda html: at_end("<img src='http://example.org/x.png' alt='x'>")(without_policy(html)),
        "asked for http://example.org/x.png",
    ),
    "too wide": (at_end(f"<pre>{'x' * 400}</pre>"), "the page overflows 1400"),
    "link out": (at_end("<a href='https://example.org'>x</a>"), "link: https://example.org"),
    "table without rows": (lambda html: re.sub(r"<tbody>.*?</tbody>", "", html, flags=re.DOTALL), "table without rows"),
    "heading left out": (lambda html: re.sub(r"<h2>.*?</h2>", "", html), "heading h3 after h1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(name: str, browser: Browser, committed_page: Path, tmp_path: Path) -> None:
    breaking, message = BROKEN[name]
    whole = committed_page.read_text(encoding="utf-8")
    broken = breaking(whole)
    assert broken != whole
    path = tmp_path / "broken.html"
    path.write_text(broken, encoding="utf-8")
    found = faults(browser, path)
    assert any(message in fault for fault in found), found


def test_chromium_that_is_missing_is_named_so_that_ci_fails() -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    assert "apt-get" in pytestmark.kwargs["reason"]
    assert '"apt-get"' in conftest.partition("LACKS = ")[2].partition("\n")[0]
    installed = (ROOT / "setup" / "debian.txt").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name} ", installed, re.MULTILINE) for name in ("chromium", "chromium-driver"))
