"""The site of docs/: it is built without a warning, and a reader stumbles over nothing on any of its pages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quarl.policy.places import PROJECT_ROOT as ROOT
from tests.bench.report.chromium import LOOK, WIDTHS, needs_chromium, opened, requested_urls, resized, started

pytest.importorskip("mkdocs", reason="mkdocs is missing: make docs")

TOO_WIDE = ["benchmark.html"]  # a table of 19 columns
SCROLLED = """return [...document.querySelectorAll("article table")].some(
  table => [table, table.parentElement, table.parentElement.parentElement].some(
    each => each.scrollWidth > each.clientWidth && getComputedStyle(each).overflowX !== "visible"))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as make docs builds it: a page, picture or heading that a link misses is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert not [page for page in (*pages, Path("index.html")) if not (site / page).exists()]
    menu = (site / "index.html").read_text(encoding="utf-8").partition("md-nav--primary")[2]
    assert not [page for page in pages if f'href="{page}"' not in menu], "the menu leads to each"


def test_the_home_is_the_readme_and_its_links_lead_into_the_site(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "<h1" in home and 'href="case-study.html' in home and 'src="figures/' in home
    assert "examples/own_task.py" in home and 'href="../examples' not in home


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@needs_chromium
@pytest.mark.slow
def test_a_reader_of_the_site_stumbles_over_nothing(site: Path, tmp_path: Path) -> None:
    look = LOOK.replace('document.querySelector("main")', 'document.querySelector("article")')
    found, scrolled = [], []
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server,
        started(tmp_path) as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        for page in sorted(str(path.relative_to(site)) for path in site.rglob("*.html")):
            opened(browser, here + page)
            for width in WIDTHS:
                resized(browser, width)
                found += [f"{page}: {fault}" for fault in browser.execute_async_script(look)]
            scrolled += [page] if browser.execute_script(SCROLLED) else []  # on the laptop, the last width
            found += [f"{page}: console: {entry['message']}" for entry in browser.get_log("browser")]
            found += [f"{page}: asked for {url}" for url in requested_urls(browser) if not url.startswith(here)]
        server.shutdown()
    assert found == []
    assert scrolled == TOO_WIDE
