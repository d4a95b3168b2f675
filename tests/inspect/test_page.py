"""What the page holds: values to 8 bits, DAPO's advantages, and text that stays text."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import block, decoded

from gtpo_verl.algorithms import compute_advantages
from gtpo_verl.inspect.page import build, complete, encode, quantised
from gtpo_verl.inspect.responses import Step

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> ]]> &lt; \u2028 \u202e {{ data }}"


@given(
    st.lists(st.floats(-1e4, 1e4, width=32) | st.just(float("nan")) | st.just(float("inf")), min_size=0, max_size=40),
    st.integers(0, 2**40),
)
def test_values_are_within_half_a_level(values, bits) -> None:
    values = np.array(values, np.float32)
    mask = np.array([bits >> place & 1 for place in range(len(values))], bool)
    span, levels = quantised(values, mask)
    shown = mask & np.isfinite(values)
    assert len(span) == 0 if not shown.any() else len(span) in (1, 2)
    if len(span) < 2:
        assert len(levels) == 0
        assert all(value == span[0] for value in values[shown])
        return
    assert ((levels == 255) == ~shown).all()
    low, high = span
    assert (low, high) == (values[shown].min(), values[shown].max())
    error = np.abs(low + (high - low) * (levels[shown] / 254.0) - values[shown])
    assert (error <= (high - low) / 508 * (1 + 1e-9) + 1e-9).all()


def test_the_page_holds_every_response(make_step) -> None:
    step = make_step(groups=3)
    page = build([encode(step)], "run")
    rows = decoded(page)
    assert len(rows) == len(step.responses)
    for (about, pieces, values), want in zip(rows, step.responses, strict=True):
        assert pieces == [step.pieces[token] for token in want.tokens]
        assert (about["right"], about["score"], about["penalty"]) == (want.right, want.score, want.length_penalty)
        for name in ("advantages", "shaped_rewards", "entropy", "old_log_probs"):
            exact = want.values[name]
            assert np.abs(values[name] - exact).max() <= np.ptp(exact) / 508 * (1 + 1e-6)
            assert about["means"][name] == pytest.approx(exact.mean(), rel=1e-5)
        difference = want.values["old_log_probs"] - want.values["rollout_log_probs"]
        assert np.abs(values["difference"] - difference).max() <= np.ptp(difference) / 508 * (1 + 1e-6)


def test_dapo_is_that_of_verl_on_the_same_rewards(make_step) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    step = make_step(groups=3, size=5)
    got = [float(one.values["dapo"][0]) for one in complete(step).responses]
    rewards = torch.tensor([[one.score] for one in step.responses])
    index = np.array([one.uid for one in step.responses], dtype=object)
    want, _ = compute_grpo_outcome_advantage(rewards, torch.ones_like(rewards), index)
    np.testing.assert_allclose(got, want.flatten().numpy(), atol=1e-5)


def test_dapo_is_the_estimator_without_entropy_where_rewards_are_right_and_wrong(make_step) -> None:
    step = make_step(groups=2, size=6)
    step = replace(step, responses=[replace(one, score=float(one.right)) for one in step.responses])
    page = decoded(build([encode(step)], "run"))
    lengths = [len(one.tokens) for one in step.responses]
    want = compute_advantages(
        "grpo_s_v1",
        torch.ones(sum(lengths)),
        torch.tensor([0, *np.cumsum(lengths)]),
        torch.tensor([row // 6 for row in range(12)]),
        torch.tensor([one.right for one in step.responses]),
        {"beta": 0.0},
    ).advantages.split(lengths)
    for (_, _, values), advantages in zip(page, want, strict=True):
        np.testing.assert_allclose(values["dapo"], advantages.numpy(), atol=1e-6)


def test_colours_reach_as_far_as_nearly_all_values_of_all_steps(make_step) -> None:
    steps = [make_step(number, length=200) for number in (1, 2)]
    page = json.loads(block(build([encode(one) for one in steps], "run"), "page"))
    scales = {one["key"]: one for one in page["quantities"]}
    for name in ("advantages", "entropy", "old_log_probs"):
        values = np.concatenate([one.values[name] for step in steps for one in step.responses])
        scale = scales[name]
        low, high = scale["centre"] - scale["below"], scale["centre"] + scale["above"]
        assert 0.97 < ((values >= low) & (values <= high)).mean() <= 0.99
    assert scales["entropy"]["centre"] - scales["entropy"]["below"] >= 0
    assert scales["advantages"]["centre"] == 0
    assert scales["advantages"]["above"] == scales["dapo"]["above"] == scales["dapo"]["below"]


def test_what_the_mask_leaves_out_has_no_value(make_step) -> None:
    step = make_step(groups=1, size=2)
    masks = [np.arange(len(one.tokens)) % 3 > 0 for one in step.responses]
    step = replace(step, responses=[replace(one, mask=mask) for one, mask in zip(step.responses, masks, strict=True)])
    for (about, _, values), mask in zip(decoded(build([encode(step)], "run")), masks, strict=True):
        assert about["trained"] == mask.sum()
        for of_tokens in values.values():
            np.testing.assert_array_equal(np.isnan(of_tokens), ~mask)


def test_text_of_models_and_users_stays_text(make_step) -> None:
    step = make_step(groups=1, size=2, pieces=[HOSTILE, "\ud83d half of a pair", "a"], prompt=HOSTILE)
    step = Step(1, HOSTILE, {"key": HOSTILE}, step.pieces, step.responses)
    page = build([encode(step)], HOSTILE)
    assert "alert(1)</script>" not in page.html
    assert "<img" not in page.html
    assert json.loads(block(page, "pieces")) == step.pieces
    about = json.loads(block(page, "page"))
    assert about["title"] == about["steps"][0]["algorithm"] == about["steps"][0]["groups"][0]["prompt"] == HOSTILE
    page.html.encode()  # the half of a pair too


def test_nothing_but_its_own_script_and_style_is_allowed(make_step) -> None:
    page = build([encode(make_step())], "run")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page.html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page.html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules.pop(f"{element}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'"}
    assert not re.search(r"""<[a-z]+[^>]*\s(src|href|style|on[a-z]+)=""", page.html.split("<script>")[0])


def test_steps_share_a_vocabulary_however_large(make_step) -> None:
    many = [f"piece {number}" for number in range(70_000)]
    steps = [make_step(1, pieces=many), make_step(2)]
    everything = [*many, *(text for text in steps[1].pieces)]
    page = build([encode(one) for one in steps], "run")
    assert set(json.loads(block(page, "pieces"))) == set(everything)
    for index, step in enumerate(steps):
        got = [pieces for _, pieces, _ in decoded(page, index)]
        assert got == [[step.pieces[token] for token in one.tokens] for one in step.responses]


def test_a_saved_page_is_whole_or_not_there(make_step, tmp_path, monkeypatch) -> None:
    page = build([encode(make_step())], "run")
    assert page.save(tmp_path / "page.html").read_text("utf-8") == page.html
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        page.save(tmp_path / "other.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
