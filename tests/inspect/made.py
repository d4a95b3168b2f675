"""Steps as a run dumps them, of random values; and what a page holds."""

import base64
import json
import re
from typing import Any

import numpy as np
import torch

from gtpo_verl.algorithms import compute_advantages, shaped_rewards
from gtpo_verl.inspect.responses import Response, Step

PIECES = ["2", "+", "3", "=", "5", "\n", " so", " the", " answer", " is", "…", "<|end|>", "", "ß", "\t"]


def step(
    number: int = 1,
    groups: int = 2,
    size: int = 4,
    length: int = 30,
    pieces: list[str] | None = None,
    estimator: str = "gtpo_v2",
    seed: int = 0,
    **changes: Any,
) -> Step:
    """`size` responses to each of `groups` prompts, every other one right, of `length` tokens and a few fewer."""
    rng = np.random.default_rng([seed, number])
    pieces = PIECES if pieces is None else pieces
    lengths = [max(1, length - int(rng.integers(0, 1 + length // 3))) for _ in range(groups * size)]
    entropy = [rng.exponential(0.5, n).astype(np.float32) for n in lengths]
    right = torch.tensor([row % 2 == 0 for row in range(groups * size)])
    flat = {
        "entropy": torch.from_numpy(np.concatenate(entropy)),
        "offsets": torch.tensor([0, *np.cumsum(lengths)]),
        "group": torch.arange(groups).repeat_interleave(size),
        "success": right,
    }
    ends = np.cumsum(lengths)[:-1]
    advantages = np.split(compute_advantages(estimator, **flat).advantages.numpy(), ends)
    rewards = np.split(shaped_rewards(estimator, **flat).rewards.numpy(), ends)
    responses = []
    for row, n in enumerate(lengths):
        log_probs = -rng.exponential(0.4, n).astype(np.float32)
        values = {
            "advantages": advantages[row],
            "shaped_rewards": rewards[row],
            "entropy": entropy[row],
            "old_log_probs": log_probs,
            "rollout_log_probs": log_probs + rng.normal(0, 0.01, n).astype(np.float32),
        }
        own = {
            "uid": f"uid-{number}-{row // size}",
            "prompt": f"What is {row // size}+3?",
            "right": bool(right[row]),
            "score": float(right[row]) - (0.25 if row == 0 else 0.0),
            "length_penalty": -0.125 if row == 0 else 0.0,
            "tokens": rng.integers(0, len(pieces), n).astype(np.int32),
            "mask": np.ones(n, bool),
            "values": values,
            "reward": {"acc": float(right[row]), "score": float(right[row])},
            "ids": rng.integers(0, 1000, n).astype(np.int32),
            "prompt_ids": np.arange(5, dtype=np.int32),
        }
        responses.append(Response(**{**own, **changes}))
    return Step(number, estimator, {"gtpo": {"alpha": 0.1}}, pieces, responses)


def block(page, identity):
    (content,) = re.findall(rf'<script type="[a-z/]+" id="{identity}">(.*?)</script>', page.html, re.DOTALL)
    return content


def decoded(page, step=0):
    """The responses of a step, as the page's script reads them."""
    about, pieces = json.loads(block(page, "page")), json.loads(block(page, "pieces"))
    lines = iter(block(page, f"data-{step}").split("\n"))
    found = []
    for group in about["steps"][step]["groups"]:
        for response in group["responses"]:
            raw, n = base64.b64decode(next(lines)), response["length"]
            width = 4 if about["wide"] else 2
            tokens, raw = np.frombuffer(raw[: n * width], f"<u{width}"), raw[n * width :]
            values = {}
            for name, span in response["ranges"].items():
                if len(span) == 2:
                    levels, raw = np.frombuffer(raw[:n], np.uint8), raw[n:]
                    values[name] = np.where(levels == 255, np.nan, span[0] + (span[1] - span[0]) * (levels / 254.0))
                else:
                    values[name] = np.full(n, span[0] if span else np.nan)
            assert raw == b""
            found.append((response, [pieces[token] for token in tokens], values))
    return found
