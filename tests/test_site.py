"""The site of the docs in a real browser: pages narrow and wide, light and dark, and its search."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
wait = pytest.importorskip("selenium.webdriver.support.wait")
pytest.importorskip("mkdocs")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="there is no Chromium"),
]

ROOT = Path(__file__).parent.parent
WIDTHS = [360, 820, 1440]
SCHEMES = {"light": "default", "dark": "slate"}
# What a page says of itself: its widths, its colours, and what it took from elsewhere.
LOOK = """
return {
    hidden: Math.max(0, document.scrollingElement.scrollWidth - innerWidth),
    scheme: document.body.getAttribute("data-md-color-scheme"),
    foreign: performance.getEntriesByType("resource").map(entry => entry.name)
        .filter(name => !name.startsWith(location.origin) && !name.startsWith("data:")),
}
"""
FOUND = 'return [...document.querySelectorAll(".md-search-result__link")].map(link => link.href)'
SEARCHES = {
    "padding": "batches/",
    "run_batch": "api/#ftuner.Model.run_batch",
    "torch.compile": "pytorch/",
    "memory_limit": "api/#ftuner.load",
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of the site, which is built from the pages as they are, and its pages."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=300)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        pages = [p.parent.relative_to(folder) for p in sorted(folder.rglob("index.html"))]
        yield f"http://127.0.0.1:{server.server_port}/", [f"{p}/".replace("./", "") for p in pages]
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for name in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{name}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options)
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def show(browser: Any, width: int, scheme: str) -> None:
    """Lets pages be `width` pixels wide, in the colours that a reader's system asks for."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    colours = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits(
    width: int, scheme: str, browser: Any, site: tuple[str, list[str]]
) -> None:
    """No page is wider than the screen, asks anything of another host, or has an error."""
    address, pages = site
    assert len(pages) > 25
    browser.get("about:blank")
    colours = {"origin": address.rstrip("/"), "storageTypes": "local_storage"}  # Of visits before.
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", colours)
    show(browser, width, scheme)
    right = {"hidden": 0, "scheme": SCHEMES[scheme], "foreign": []}
    for page in pages:
        browser.get(address + page)
        # The colours are set by a script, which may still run.
        wait.WebDriverWait(browser, 60).until(
            lambda driver: driver.execute_script(LOOK) == right, f"{page} is not {right}"
        )
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == [], page


@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds(words: str, browser: Any, site: tuple[str, list[str]]) -> None:
    address, _ = site
    show(browser, 1440, "light")
    browser.get(address)
    box = browser.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys(words)
    found = wait.WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(FOUND))
    assert SEARCHES[words] in [link.removeprefix(address).split("?")[0] for link in found]
