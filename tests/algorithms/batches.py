"""Random batches, and the two forms that the package takes them in."""

import math

import numpy as np
import torch

LOG_VOCABULARY = math.log(152_064)


def entropies(rng, count):
    """Nats in float32: exact zeros, values from 1e-12 on, and up to those of a uniform distribution."""
    values = 10.0 ** rng.uniform(-12, math.log10(LOG_VOCABULARY), count)
    values[rng.random(count) < 0.15] = 0.0
    values[rng.random(count) < 0.05] = LOG_VOCABULARY
    return [float(x) for x in values.astype(np.float32)]


def random_rows(seed, group_sizes, longest, right_fraction=0.5):
    """Rows in random order; groups may be all right or all wrong, and responses may be empty."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "uid": f"prompt-{g}",
            "success": bool(rng.random() < right_fraction),
            "entropy": entropies(rng, int(rng.integers(0, longest + 1))),
        }
        for g, size in enumerate(group_sizes)
        for _ in range(size)
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


def mixed_rows(seed, groups=3, size=6, longest=12):
    """Rows of groups that hold at least one right and one wrong response, none of them empty."""
    rng = np.random.default_rng(seed)
    return [
        {
            "uid": f"prompt-{g}",
            "success": i == 0 or (i > 1 and bool(rng.random() < 0.5)),
            "entropy": [float(x) for x in rng.uniform(0.01, 3.0, int(rng.integers(1, longest + 1))).astype(np.float32)],
        }
        for g in range(groups)
        for i in range(size)
    ]


def flat(rows, dtype=torch.float32):
    """`entropy`, `offsets`, `group` and `success` as `compute_advantages` takes them."""
    lengths = torch.tensor([len(row["entropy"]) for row in rows], dtype=torch.int64)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    entropy = torch.tensor([h for row in rows for h in row["entropy"]], dtype=dtype)
    uids = sorted({row["uid"] for row in rows})
    group = torch.tensor([uids.index(row["uid"]) for row in rows], dtype=torch.int64)
    return entropy, offsets, group, torch.tensor([row["success"] for row in rows], dtype=torch.bool)


def padded(rows, width=None, holes=None, fill=0.0):
    """`entropy`, `response_mask`, `index` and `success`; with `holes`, a random generator, tokens stand anywhere."""
    longest = max((len(row["entropy"]) for row in rows), default=0)
    width = longest if width is None else width
    entropy = torch.full((len(rows), width), fill)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        count = len(row["entropy"])
        columns = range(count) if holes is None else sorted(holes.choice(width, count, replace=False))
        for column, h in zip(columns, row["entropy"], strict=True):
            entropy[i, column], mask[i, column] = h, 1
    index = np.array([row["uid"] for row in rows], dtype=object)
    return entropy, mask, index, torch.tensor([row["success"] for row in rows], dtype=torch.bool)
