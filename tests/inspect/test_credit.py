"""The picture of one's own tensors, from `gtpo_verl.algorithms` alone."""

import html
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from made import decoded

from gtpo_verl.algorithms import compute_padded_advantages, group_advantages
from gtpo_verl.inspect import credit

ENTROPY = torch.tensor([[0.5, 1.5, 0.2, 9.0], [0.1, 0.1, 0.3, 0.4], [2.0, 0.1, 9.0, 9.0], [0.3, 9.0, 0.6, 0.7]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 1]])
INDEX = ["a", "a", "a", "a"]
SUCCESS = torch.tensor([True, True, False, False])
TOKENS = [["one", " two", " three", "<pad>"], ["1", "2", "3", "4"], ["x", "y"], ["p", "(tool)", "q", "r"]]


def test_it_shows_what_the_algorithm_gives() -> None:
    config = {"length_penalty": {"enable": True, "max_length": 4, "buffer": 2}}
    page = credit("gtpo_v2", ENTROPY, MASK, INDEX, SUCCESS, TOKENS, config, old_log_probs=-ENTROPY, title="mine")
    rows = decoded(page)
    advantages, _ = compute_padded_advantages("gtpo_v2", ENTROPY, MASK, INDEX, SUCCESS, config)
    dapo = group_advantages(SUCCESS.double(), torch.zeros(4, dtype=torch.int64))
    assert [about["length"] for about, _, _ in rows] == [3, 4, 2, 4]
    assert [about["penalty"] for about, _, _ in rows] == [-0.25, -0.5, 0.0, 0.0]
    for row, (_, pieces, values) in enumerate(rows):
        assert pieces == TOKENS[row][: len(pieces)]
        own = MASK[row, : len(pieces)].bool().numpy()
        exact = advantages[row, : len(pieces)].numpy()[own]
        assert np.abs(values["advantages"][own] - exact).max() <= np.ptp(exact) / 508 * (1 + 1e-6)
        assert np.isnan(values["advantages"][~own]).all()
        np.testing.assert_allclose(values["dapo"][own], dapo[row], rtol=1e-6)
        assert "difference" not in values
    assert json.loads(re.findall(r'id="page">(.*?)</script>', page.html)[0])["title"] == "mine"


def test_scores_are_what_dapo_standardises() -> None:
    scores = [1.0, 0.5, -1.0, -1.0]
    rows = decoded(credit("gtpo_v1", ENTROPY, MASK, INDEX, SUCCESS, TOKENS, scores=scores))
    want = group_advantages(torch.tensor(scores), torch.zeros(4, dtype=torch.int64))
    for (about, _, values), score, advantage in zip(rows, scores, want, strict=True):
        assert about["score"] == score
        np.testing.assert_allclose(values["dapo"][0], advantage, rtol=1e-6)


def test_jupyter_gets_a_frame_with_the_page_in_it(tmp_path) -> None:
    page = credit("gtpo_v2", ENTROPY, MASK, INDEX, SUCCESS, TOKENS)
    (content,) = re.findall(r'^<iframe sandbox="allow-scripts" [^>]*srcdoc="(.*)"></iframe>$', page._repr_html_(), re.S)
    assert html.unescape(content) == page.html
    assert page.save(tmp_path / "page.html").read_text("utf-8") == page.html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": TOKENS[:3]}, "tokens has 3 rows, and entropy 4"),
        ({"tokens": [["one"], *TOKENS[1:]]}, r"tokens\[0\] has 1 texts, and response_mask 4 columns, 3 of them"),
        ({"old_log_probs": torch.zeros(4, 3)}, r"old_log_probs \(4, 3\) and response_mask \(4, 4\)"),
        ({"estimator": "gtpo_v9"}, "adv_estimator must be one of gtpo_v1"),
        ({"config": {"alhpa": 1}}, "algorithm.gtpo.alhpa"),
        ({"scores": [1.0]}, "scores has 1 rows"),
        ({"entropy": torch.tensor(1.0)}, r"entropy \(\) and response_mask \(4, 4\)"),
        ({"entropy": "high"}, "entropy is no tensor, but str"),
        ({"response_mask": None}, "response_mask is no tensor, but NoneType"),
        ({"old_log_probs": [[0.0], [0.0, 1.0]]}, "old_log_probs is no tensor, but list"),
        ({"success": None}, "success is no tensor, but NoneType"),
        ({"success": True}, "success has no rows, and entropy 4"),
        ({"index": 4}, "index has no rows"),
        ({"tokens": None}, "tokens has no rows"),
        ({"tokens": [1, 2, 3, 4]}, r"tokens\[0\] has no texts"),
    ],
)
def test_what_does_not_fit_is_named(change, said) -> None:
    given = {"estimator": "gtpo_v2", "entropy": ENTROPY, "response_mask": MASK, "index": INDEX, "success": SUCCESS}
    with pytest.raises(ValueError, match=said):
        credit(**{**given, "tokens": TOKENS, **change})


def test_arrays_and_lists_are_tensors_too() -> None:
    want = credit("gtpo_v2", ENTROPY, MASK, INDEX, SUCCESS, TOKENS, old_log_probs=-ENTROPY)
    given = {"entropy": ENTROPY.numpy(), "response_mask": MASK.tolist(), "success": SUCCESS.numpy()}
    got = credit("gtpo_v2", **given, index=np.array(INDEX), tokens=TOKENS, old_log_probs=(-ENTROPY).tolist())
    assert got.html == want.html


def test_neither_verl_nor_ray_is_needed() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("verl", "ray", "vllm", "hydra", "omegaconf", "transfer_queue", "pyarrow", "yaml"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
import torch
from gtpo_verl.inspect import credit
page = credit("gtpo_v2", torch.ones(2, 3), torch.ones(2, 3), ["a", "a"], torch.tensor([True, False]), [list("abc")] * 2)
print(len(page.html), sorted({"verl", "ray"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    size, loaded = result.stdout.split(maxsplit=1)
    assert int(size) > 10_000
    assert loaded == "[]\n"
