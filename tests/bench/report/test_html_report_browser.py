"""The report as a reader sees it: opened from a file in headless Chromium, wide and narrow, page by page.

A check that finds nothing proves nothing by itself, so each is shown a report that is broken in its way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from bench.report.page import command as html_report
from bench.report.page.sources import ROOT
from policy.bundle import Bundle

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WIDTHS = (360, 1400)  # CSS pixels: a small telephone, a laptop
pytestmark = pytest.mark.skipif(
    None in (CHROMIUM, DRIVER),
    reason="needs Chromium: apt-get install --no-install-recommends chromium chromium-driver",
)
STUDIED = {
    "wide-weights": "wide.jsonl",
    "apart": "apart.jsonl",
    "layers": "layers.jsonl",
    "budgets": "budgets.jsonl",
}
"""Files of the study that may be made after the others, by the section that shows them."""
Write = Callable[..., Bundle]
Browser = webdriver.Chrome

# Of what is shown now, everything opened: one line for each fault.
LOOK = """
const done = arguments[arguments.length - 1];
const faults = [];
const shown = element => element.checkVisibility({contentVisibilityAuto: false});
document.querySelectorAll("details").forEach(each => { each.open = true; });
const blank = image => {  // every pixel like the first one
  const canvas = document.createElement("canvas");
  canvas.width = 64; canvas.height = 64;
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0, 64, 64);
  const pixels = new Uint32Array(pen.getImageData(0, 0, 64, 64).data.buffer);
  return pixels.every(pixel => pixel === pixels[0]);
};
const images = [...document.images].filter(shown);
Promise.allSettled(images.map(image => image.decode())).then(() => {
  for (const image of images) {
    const box = image.getBoundingClientRect(), name = "figure " + image.alt.slice(0, 60);
    if (!image.complete || !image.naturalWidth) faults.push(name + ": not rendered");
    else if (box.width < 100 || box.height < 100) faults.push(name + `: ${box.width} by ${box.height} pixels`);
    else if (blank(image)) faults.push(name + ": blank");
    if (!image.alt) faults.push("figure without words for who does not see it");
  }
  for (const table of [...document.querySelectorAll("table")].filter(shown))
    if (!table.querySelector("tbody tr td")) faults.push("table without rows: " + table.parentElement.ariaLabel);
  const excess = document.documentElement.scrollWidth - window.innerWidth;
  if (excess > 0) faults.push(`the page is ${excess} pixels too wide at ${window.innerWidth}`);
  let level = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown)) {
    const mine = Number(heading.tagName[1]);
    if (mine > level + 1) faults.push(`heading h${mine} after h${level}: ${heading.textContent}`);
    level = mine;
  }
  if (!document.querySelector("main").innerText.trim()) faults.push("nothing is shown");
  done(faults);
});
"""
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
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever asked for a name would get none
        f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(argument)
    # With the driver's path given, selenium looks for none on the network.
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(600)  # a machine that does other things too takes minutes for all pictures
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the committed results and bundles."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(
        ROOT / "results", folder / "results", ignore=shutil.ignore_patterns("*.sqlite*", "*.html", "weights")
    )
    output = folder / "report.html"
    assert html_report.main(["--results", str(folder / "results"), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, balancing: Write) -> str:
    """The report of one bundle."""
    folder = tmp_path_factory.mktemp("small")
    balancing(folder / "zoo" / "balancing")
    output = folder / "small.html"
    arguments = ["--results", str(folder / "results"), "--zoo", str(folder / "zoo"), "--output", str(output)]
    assert html_report.main(arguments) == 0
    return output.read_text(encoding="utf-8")


def resized(browser: Browser, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def opened(browser: Browser, path: Path) -> None:
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())


def asked_for(browser: Browser) -> list[str]:
    """Addresses that were requested, those inside the file left out."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]


def faults(browser: Browser, path: Path) -> list[str]:
    """What a reader would stumble over, on the whole report and on every policy's page, at each width."""
    opened(browser, path)
    found = list(browser.execute_script(LINKS))
    pages = [element.get_attribute("id") for element in browser.find_elements(By.CSS_SELECTOR, "section.page")]
    for width in WIDTHS:
        resized(browser, width)
        for anchor in ("top", *pages):
            browser.execute_script("location.hash = arguments[0]", anchor)
            found += [f"{anchor}: {fault}" for fault in browser.execute_async_script(LOOK)]
    found += [f"console: {entry['level']} {entry['message']}" for entry in browser.get_log("browser")]
    found += [f"asked for {url}" for url in asked_for(browser)]
    return found


@pytest.mark.slow
def test_a_reader_stumbles_over_nothing(browser: Browser, report: Path) -> None:
    assert faults(browser, report) == []


@pytest.mark.slow
def test_every_bundle_has_its_page_and_every_result_its_section(browser: Browser, report: Path) -> None:
    opened(browser, report)
    titles = [each.get_attribute("textContent") for each in browser.find_elements(By.CSS_SELECTOR, ".page > h2")]
    bundles = [path.parent.name for path in (ROOT / "zoo").glob("**/manifest.json")]
    assert sorted(titles) == sorted(f"Policy {name}" for name in bundles)
    missing = {each.get_attribute("id") for each in browser.find_elements(By.CSS_SELECTOR, "section:has(> .missing)")}
    study = report.parent / "results" / "study"  # as it was when the report was made
    own = set() if (study.parent / "results.sqlite").exists() else {"own"}
    assert missing == own | {anchor for anchor, name in STUDIED.items() if not any(study.glob(name))}
    for page in browser.find_elements(By.CSS_SELECTOR, "section.page"):
        pictures = len(page.find_elements(By.TAG_NAME, "img"))
        assert pictures >= 2, page.get_attribute("id")  # weights and learning curve; most have sweeps too


@pytest.mark.slow
def test_a_page_is_shown_alone_and_left_again(browser: Browser, report: Path) -> None:
    opened(browser, report)
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
    opened(browser, report)
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
    breaking, said = BROKEN[name]
    broken = breaking(small)
    assert broken != small
    path = tmp_path / "broken.html"
    path.write_text(broken, encoding="utf-8")
    found = faults(browser, path)
    assert any(said in fault for fault in found), found


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
