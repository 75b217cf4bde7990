"""Pages looked at in headless Chromium: started once, what a reader would stumble over, what was asked of a network."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WIDTHS = (360, 1400)  # CSS pixels: a small telephone, a laptop
needs_chromium = pytest.mark.skipif(
    None in (CHROMIUM, DRIVER),
    reason="needs Chromium: apt-get install --no-install-recommends chromium chromium-driver",
)
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
// What moves to its new place after the width has changed is looked at where it comes to rest.
const still = () => Promise.allSettled(document.getAnimations().map(each => each.finished));
Promise.allSettled(images.map(image => image.decode())).then(still).then(() => {
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


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser that reaches no network."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    for argument in (
        "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # whatever asked for a name would get none
        f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(argument)
    # With the driver's path given, selenium looks for none on the network.
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(600)  # a machine that does other things too takes minutes for all pictures
    try:
        yield driver
    finally:
        driver.quit()


def resized(browser: Browser, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def opened(browser: Browser, address: str) -> None:
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(address)


def requested_urls(browser: Browser) -> list[str]:
    """Addresses that were requested, those inside the file left out."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]
