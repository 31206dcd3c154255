"""A headless Chromium for tests of pages; they are skipped where it, or playwright, is not installed."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Window:
    """A browser's page that notes what went wrong in it, and what it asked for."""

    def __init__(self, page):
        self.page, self.faults, self.asked = page, [], []
        page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str):
        self.page.goto(address)
        self.page.wait_for_selector("body[data-drawn]")
        return self.page


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as playing:
        browser = playing.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def window(chromium):
    page = chromium.new_page()
    yield Window(page)
    page.close()
