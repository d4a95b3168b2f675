"""The page in a real browser, without a network: drawn, and doing what it offers."""

import re
from collections.abc import Iterator
from pathlib import Path

import browser
import numpy as np
import pytest
from browser import Browser
from PIL import Image, ImageColor

from gtpo_verl.report import write_report
from gtpo_verl.report.figure import colour

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DAPO, GTPO = 0, 1
# All text of the page, that of the plots' shadow trees too.
TEXT = """(function text(node) {
  return [...node.querySelectorAll("*")].map(one => one.shadowRoot ? text(one.shadowRoot) : "").join(" ")
    + " " + (node.body ?? node).textContent
})(document)"""


@pytest.fixture(scope="module")
def page(files, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for algorithm, entropy in (("dapo", 0.2), ("gtpo_v1", 0.6)):
        for seed in (1, 2, 3):
            last = 6 if (algorithm, seed) == ("gtpo_v1", 2) else 12
            lines = [
                files.training(step, entropy=entropy + seed / 50 + step / 100, **{"timing_s/step": 3.0})
                for step in range(1, last + 1)
            ]
            files.write_run(folder / f"runs/{algorithm}-seed{seed}", *lines, planned=12)
    return write_report([folder / "runs"], folder / "report", title="<Title> & more").with_name("report.html")


@pytest.fixture
def tab(page: Path, tmp_path: Path) -> Iterator[Browser]:
    executable = browser.find()
    if executable is None:
        pytest.fail(f"this test needs Chromium: {browser.INSTALL}")
    opened = Browser(executable, tmp_path)
    try:
        opened.open(page)
        opened.wait_until("window.Bokeh?.documents.length === 1 && Bokeh.documents.every(page => page.is_idle)")
        yield opened
    finally:
        opened.close()


def plot(tab: Browser, number: int) -> dict:
    """Where a figure is; negative numbers count from the last one."""
    return tab.evaluate(
        f"""(() => {{
          const find = node => [...node.querySelectorAll("*")].flatMap(
            one => one.classList.contains("bk-Figure") ? [one] : one.shadowRoot ? find(one.shadowRoot) : [])
          const {{x, y, width, height}} = find(document).at({number}).getBoundingClientRect()
          return {{x: x + scrollX, y: y + scrollY, width, height}}
        }})()"""
    )


def first_plot(tab: Browser) -> dict:
    return plot(tab, 0)


def pixels(image: Image.Image, algorithm: int) -> int:
    """How many pixels have an algorithm's colour."""
    wanted = np.array(ImageColor.getrgb(colour(algorithm)))
    return int((np.abs(np.asarray(image).astype(int) - wanted).max(axis=-1) < 12).sum())


def click_on(tab: Browser, shows: str) -> None:
    box = tab.evaluate(
        f"""(() => {{
          const {{x, y, width, height}} = document.querySelector('[data-shows="{shows}"]').getBoundingClientRect()
          return [x + width / 2, y + height / 2]
        }})()"""
    )
    tab.click(*box)
    tab.wait_until("Bokeh.documents.every(page => page.is_idle)")
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_it_opens_without_a_network_and_draws_every_algorithm(tab: Browser, page: Path) -> None:
    fetched = [address for address in tab.requests if not address.startswith("data:")]
    assert fetched == [page.resolve().as_uri()[:100]]
    assert tab.complaints == []
    shot = tab.screenshot(first_plot(tab))
    assert pixels(shot, DAPO) > 100
    assert pixels(shot, GTPO) > 100
    text = " ".join(tab.evaluate("document.body.innerText").split())
    assert "<Title> & more" in text
    assert "gtpo_v1-seed2 at step 6 of 12" in text
    assert re.search(r"reward DAPO 0\.500 0\.500 0\.500 to 0\.500 3 of 3", text)
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_checkbox_hides_an_algorithm_and_shows_it_again(tab: Browser) -> None:
    before = tab.screenshot(first_plot(tab))
    click_on(tab, "algorithm gtpo_v1")
    hidden = tab.screenshot(first_plot(tab))
    assert pixels(hidden, GTPO) == 0
    assert pixels(hidden, DAPO) > 100
    click_on(tab, "algorithm gtpo_v1")
    assert pixels(tab.screenshot(first_plot(tab)), GTPO) == pixels(before, GTPO)
    assert tab.complaints == []


def test_differences_are_drawn_and_said(tab: Browser) -> None:
    entropy = plot(tab, -2)
    scrolled = tab.evaluate(f"(scrollTo(0, {entropy['y']} - 200), scrollY)")

    def said() -> re.Match | None:
        text = " ".join(tab.evaluate(TEXT).split())
        return re.search(r"GTPO v1 ?mean: ?\+0\.4000 ?95 % interval: ?- ?pairs: ?2", text)

    # Along the only row, which is in the middle of what is above the axis, until the mean is met.
    for x in range(int(0.8 * entropy["width"]), int(entropy["width"]), 2):
        tab.mouse("mouseMoved", entropy["x"] + x, entropy["y"] + 47 - scrolled)
        if said():
            break
    assert said(), tab.evaluate(TEXT)
    tab.mouse("mouseMoved", 1, 1)
    assert "Minus DAPO at step 12; dots: seeds; marker: their mean." in tab.evaluate("document.body.innerText")
    both = pixels(tab.screenshot(entropy), GTPO)
    assert both > 20
    click_on(tab, "kind mean")
    assert pixels(tab.screenshot(entropy), GTPO) < both
    click_on(tab, "kind mean")
    click_on(tab, "algorithm gtpo_v1")
    assert pixels(tab.screenshot(entropy), GTPO) == 0
    assert tab.complaints == []


def test_single_runs_are_drawn_on_demand(tab: Browser) -> None:
    def coloured() -> int:
        return int((np.ptp(np.asarray(tab.screenshot(first_plot(tab))), axis=-1) > 40).sum())

    for kind in ("mean", "band", "ended"):
        click_on(tab, f"kind {kind}")
    assert coloured() == 0
    click_on(tab, "kind seeds")
    assert coloured() > 200
    click_on(tab, "algorithm dapo")
    click_on(tab, "algorithm gtpo_v1")
    assert coloured() == 0


def test_the_mouse_says_mean_interval_and_seeds(tab: Browser) -> None:
    box = first_plot(tab)
    for part in (0.3, 0.4, 0.5):
        tab.mouse("mouseMoved", box["x"] + part * box["width"], box["y"] + 0.5 * box["height"])
    tab.wait_until(f"/95 % interval/.test({TEXT}.replace(/<style.*/, ''))", timeout=10)
    text = " ".join(tab.evaluate(TEXT).split())
    assert re.search(r"GTPO v1 ?step: ?\d+ ?mean: ?0\.6\d+ ?95 % interval: ?-?0\.\d+ to \d\.\d+ ?seeds: ?[23]", text), (
        text
    )
    assert tab.complaints == []


def test_the_page_is_the_library_and_little_more(page: Path) -> None:
    content = page.read_text()
    assert len(content) < 1.6e6
    # Nothing is loaded from elsewhere: no address in what a browser would fetch by itself.
    assert not re.search(r"""<(script|link|img|iframe)[^>]+(src|href)=""", content)
