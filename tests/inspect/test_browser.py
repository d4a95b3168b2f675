"""The page in a real browser, without a network: what it draws, and what its controls and keys do."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import browser
import numpy as np
import pytest
from browser import Browser

from gtpo_verl.inspect import Page, dump
from gtpo_verl.inspect.command import inspect
from gtpo_verl.inspect.page import complete

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOSTILE = "</script><img src=x onerror=window.ran=1>"
PIECES = ["12", "+", "3", "=", "15", "\n", " so", " the answer", HOSTILE, "", "\u202eabc", "\t", "x" * 90]
LONG = 20_000
BLUE, WHITE, ORANGE = (66, 140, 210), (255, 255, 255), (235, 130, 40)


@pytest.fixture(scope="module")
def steps(make_step):
    """Two steps of short responses; the second has a long one, and holds a text that is found once."""
    second = make_step(2, groups=2, size=4, pieces=[*PIECES, "needle"], length=60)
    rows = [replace(one, tokens=one.tokens % len(PIECES)) for one in second.responses]
    rows[5].tokens[40] = len(PIECES)
    long = make_step(3, groups=1, size=2, pieces=PIECES, length=LONG)
    return [make_step(1, pieces=PIECES), replace(second, responses=rows), long]


@pytest.fixture(scope="module")
def page(steps, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for step in steps:
        dump.write(step, folder / "tokens", 2**30)
    return inspect(folder, folder / "page.html").path


@pytest.fixture
def tab(page: Path, tmp_path: Path) -> Iterator[Browser]:
    executable = browser.find()
    if executable is None:
        pytest.fail(f"this test needs Chromium: {browser.INSTALL}")
    opened = Browser(executable, tmp_path)
    try:
        opened.open(page)
        yield opened
    finally:
        opened.close()


def chosen(tab: Browser, control: str) -> str:
    return tab.evaluate(f"(one => one.selectedOptions[0].textContent)(document.getElementById('{control}'))")


def choose(tab: Browser, control: str, text: str) -> None:
    """Walks through a list with the arrow keys, as a user without a mouse does."""
    tab.evaluate(f"document.getElementById('{control}').focus()")
    for _ in range(10):
        tab.key("ArrowUp")
    for _ in range(10):
        if chosen(tab, control) == text:
            tab.evaluate("document.getElementById('view').focus()")
            return
        tab.key("ArrowDown")
    raise AssertionError(f"{control} has no {text}")


def go_to_step(tab: Browser, number: int) -> None:
    tab.evaluate("document.getElementById('view').focus()")
    for _ in range(3):
        if chosen(tab, "step") == str(number):
            return
        tab.key("p")
    raise AssertionError(f"no step {number}")


def heads(tab: Browser) -> list[str]:
    return tab.evaluate("[...document.querySelectorAll('.column')].map(one => one.ariaLabel)")


def token(tab: Browser, label: str, t: int) -> dict:
    """Text, colour and place of a token in the column of that label."""
    return tab.evaluate(
        f"""(() => {{
          const column = [...document.querySelectorAll(".column")].find(one => one.ariaLabel === {json.dumps(label)})
          const span = [...column.querySelectorAll("span")].find(one => one.at.t === {t})
          const {{x, y, width, height}} = span.getBoundingClientRect()
          return {{text: span.textContent, colour: getComputedStyle(span).backgroundColor, classes: span.className,
            x: x + width / 2, y: y + height / 2}}
        }})()"""
    )


def rgb(text: str) -> np.ndarray:
    return np.array([int(part) for part in re.findall(r"\d+", text)])


def expected(tab: Browser, value: float, key: str) -> np.ndarray:
    scale = tab.evaluate(f"page.quantities.find(one => one.key === '{key}')")
    reach = scale["below" if value < scale["centre"] else "above"]
    part = np.clip((value - scale["centre"]) / reach, -1, 1)
    end = np.array(BLUE if part > 0 else ORANGE)
    return np.array(WHITE) + (end - np.array(WHITE)) * abs(part)


def test_it_opens_without_a_network_and_runs_nothing_that_a_model_wrote(tab: Browser, page: Path) -> None:
    go_to_step(tab, 2)
    assert [one for one in tab.requests if not one.startswith("data:")] == [page.resolve().as_uri()[:100]]
    assert HOSTILE in tab.evaluate("document.getElementById('sheet').textContent")
    assert tab.evaluate("window.ran") is None
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.complaints == []
    # What would get past the escaping is stopped by the policy.
    tab.evaluate(
        "(one => { one.textContent = 'window.ran = 1'; document.body.append(one) })(document.createElement('script'))"
    )
    assert tab.evaluate("window.ran") is None
    assert "Content Security Policy" in " ".join(tab.complaints)


def test_right_ones_come_first_and_dapo_stands_beside(tab: Browser, steps) -> None:
    go_to_step(tab, 1)
    assert heads(tab)[:3] == ["✓ right · response 1", "✓ right · response 1 under DAPO", "✓ right · response 3"]
    tab.key("d")
    assert heads(tab) == [
        "✓ right · response 1",
        "✓ right · response 3",
        "✗ wrong · response 2",
        "✗ wrong · response 4",
    ]
    text = tab.evaluate("document.querySelector('.head').textContent")
    shaped = steps[0].responses[0].values["shaped_rewards"].mean()
    assert f"mean shaped reward +{shaped:.3g}" in text
    assert "length penalty \N{MINUS SIGN}0.125" in text
    choose(tab, "show", "wrong")
    assert heads(tab)[0] == "✗ wrong · response 2"


def test_the_control_changes_the_colour_to_that_of_the_value(tab: Browser, steps) -> None:
    go_to_step(tab, 1)
    own, beside = complete(steps[0]).responses[0], "✓ right · response 1 under DAPO"
    names = {
        "advantage": "advantages",
        "entropy (nats)": "entropy",
        "log-probability (nats)": "old_log_probs",
        "log-probability, actor minus rollout (nats)": "difference",
        "shaped reward": "shaped_rewards",
        "DAPO's advantage": "dapo",
    }
    seen = set()
    for label in tab.evaluate("[...document.getElementById('colour').options].map(one => one.textContent)"):
        choose(tab, "colour", label)
        key = names.pop(label)
        for t in (0, 3, 7):
            colour = token(tab, "✓ right · response 1", t)["colour"]
            error = np.abs(rgb(colour) - expected(tab, float(own.values[key][t]), key)).max()
            assert error <= 3, (label, t, colour)
            seen.add(colour)
            dapo = token(tab, beside, t)["colour"]
            assert np.abs(rgb(dapo) - expected(tab, float(own.values["dapo"][t]), "dapo")).max() <= 1
    assert names == {}
    assert len(seen) > 6


def test_a_key_walks_through_steps_and_prompts(tab: Browser) -> None:
    assert chosen(tab, "step") == "3"  # the last one
    tab.key("p")
    assert chosen(tab, "step") == "2"
    assert tab.evaluate("document.getElementById('prompt').textContent") == "What is 0+3?"
    tab.key("j")
    assert tab.evaluate("document.getElementById('prompt').textContent") == "What is 1+3?"
    for _ in range(3):
        tab.key("p")
    assert chosen(tab, "step") == "1"
    tab.key("n")
    assert chosen(tab, "step") == "2"


def test_search_finds_text_over_tokens_and_prompts_and_goes_there(tab: Browser) -> None:
    go_to_step(tab, 2)
    tab.key("/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.send("Input.insertText", text="NEEDLE")
    tab.wait_until("document.getElementById('hits').textContent === '1 of 1'")
    assert tab.evaluate("document.getElementById('prompt').textContent") == "What is 1+3?"
    found = token(tab, "✗ wrong · response 2", 40)
    assert found["text"] == "needle"
    assert {"hit", "current"} <= set(found["classes"].split())
    assert tab.evaluate("document.querySelectorAll('.current').length") >= 1
    tab.evaluate("document.getElementById('search').select()")
    tab.send("Input.insertText", text="12")
    tab.key("Enter")  # at once, before the pause after the last letter is over
    place, count = position_of_hit(tab)  # the first one of the prompt that is looked at
    assert place > 1
    assert count > place + 1
    tab.key("Enter")
    assert position_of_hit(tab) == (place + 1, count)
    tab.key("Enter", shift=True)
    assert position_of_hit(tab) == (place, count)
    go_to_step(tab, 1)  # where no match was gone to yet: backwards begins with the last
    tab.key("/")
    tab.key("Enter", shift=True)
    place, count = position_of_hit(tab)
    assert place == count > 2
    tab.evaluate("document.getElementById('search').select()")
    tab.send("Input.insertText", text="nowhere")
    tab.wait_until("document.getElementById('hits').textContent === '0 found'")


def position_of_hit(tab: Browser) -> tuple[int, int]:
    place, count = tab.evaluate("document.getElementById('hits').textContent").split(" of ")
    return int(place), int(count)


def test_values_are_said_under_the_mouse_and_under_the_cursor(tab: Browser, steps) -> None:
    go_to_step(tab, 1)
    own = complete(steps[0]).responses[0]
    place = token(tab, "✓ right · response 1", 3)
    tab.mouse("mouseMoved", place["x"], place["y"])
    tab.wait_until("!document.getElementById('tip').hidden")
    said = tab.evaluate("document.getElementById('tip').textContent")
    assert f"token 4 of {len(own.tokens)}" in said
    (entropy,) = re.findall(r"entropy \(nats\): (\S+)", said)
    level = float(np.ptp(own.values["entropy"])) / 254
    assert float(entropy) == pytest.approx(own.values["entropy"][3], abs=level / 2 + 0.005)
    tab.mouse("mouseMoved", 5, 5)
    tab.evaluate("document.getElementById('view').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        tab.key(key)
    assert "token 3 of" in tab.evaluate("document.getElementById('tip').textContent")
    assert "cursor" in token(tab, "✓ right · response 1", 2)["classes"]
    tab.key("ArrowRight", shift=True)
    assert "cursor" in token(tab, "✓ right · response 3", 2)["classes"]
    tab.key("Escape")
    assert tab.evaluate("document.getElementById('tip').hidden")


def test_responses_are_sorted(tab: Browser, steps) -> None:
    go_to_step(tab, 1)
    tab.key("d")
    group = steps[0].groups()[0]
    choose(tab, "sort", "longest first")
    longest = max(range(len(group)), key=lambda row: len(group[row].tokens))
    assert heads(tab)[0].endswith(f"response {longest + 1}")
    choose(tab, "colour", "entropy (nats)")
    choose(tab, "sort", "lowest mean of the colour first")
    lowest = min(range(len(group)), key=lambda row: group[row].values["entropy"].mean())
    assert heads(tab)[0].endswith(f"response {lowest + 1}")


def test_of_a_long_response_only_what_is_seen_is_drawn(tab: Browser, steps) -> None:
    assert chosen(tab, "step") == "3"
    assert tab.evaluate("document.getElementById('sheet').scrollHeight") > 20_000
    assert 50 < tab.evaluate("document.querySelectorAll('.row span').length") < 6_000
    tab.evaluate("document.getElementById('view').scrollTop = 1e9")
    last = len(steps[2].responses[0].tokens) - 1
    tab.wait_until(f"[...document.querySelectorAll('.row span')].some(one => one.at.r === 0 && one.at.t === {last})")
    assert tab.evaluate("document.querySelectorAll('.row span').length") < 6_000
    assert tab.complaints == []


def test_jupyter_shows_it_in_a_frame(page: Path, tab: Browser, tmp_path: Path) -> None:
    """As a cell's output: the frame is sealed off, so what is looked at is what it paints."""
    cell = tmp_path / "cell.html"
    cell.write_text(f"<!doctype html><meta charset=utf-8><body>{Page(page.read_text())._repr_html_()}")
    tab.open(cell)
    box = {"x": 0, "y": 0, "width": 1300, "height": 700}

    def pixels(colour) -> int:
        return int((np.abs(np.asarray(tab.screenshot(box)).astype(int) - np.array(colour)).max(axis=-1) < 4).sum())

    deadline = time.monotonic() + 60
    while not (pixels(BLUE) > 500 and pixels(ORANGE) > 500):  # the heads of right and of wrong ones
        assert time.monotonic() < deadline, tab.complaints
    assert tab.evaluate("document.querySelector('iframe').contentDocument") is None
    assert tab.complaints == []
