"""The losses of others' methods in plain PyTorch, each from its paper, sharing no code with verl's.

A row is a response: `log_prob`, `old`, `reference` (tokens,) and its `advantage`, a number or (tokens,). A function
takes the micro-batches, lists of rows, and gives the loss of all of them together, or every loss that chance allows.
"""

import itertools

import torch


def ratio(row):
    return (row["log_prob"] - row["old"]).exp()


def clipped(row, low, high):
    r, a = ratio(row), row["advantage"]
    return -torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


def of_all(micro_batches):
    return [row for rows in micro_batches for row in rows]


def mean_over_tokens(terms):
    return torch.cat(terms).mean()


def mean_over_responses(terms):
    return torch.stack([term.mean() for term in terms]).mean()


def dapo(micro_batches):
    return mean_over_tokens([clipped(row, 0.2, 0.28) for row in of_all(micro_batches)])


def grpo(micro_batches):
    """DeepSeekMath, eqs. 3 and 4."""
    rows = of_all(micro_batches)
    away = [row["reference"] - row["log_prob"] for row in rows]
    divergence = mean_over_responses([d.exp() - d - 1 for d in away])
    return mean_over_responses([clipped(row, 0.2, 0.2) for row in rows]) + 0.04 * divergence


def dr_grpo(micro_batches, longest=112):
    return torch.stack([clipped(row, 0.2, 0.2).sum() / longest for row in of_all(micro_batches)]).mean()


def gspo(micro_batches):
    """Eq. 5, with the ratio of eq. 7."""
    terms = []
    for row in of_all(micro_batches):
        s, a = (row["log_prob"] - row["old"]).mean().exp(), row["advantage"]
        terms.append(-torch.minimum(s * a, s.clamp(1 - 3e-4, 1 + 4e-4) * a))
    return torch.stack(terms).mean()


def cispo(micro_batches):
    """Eq. 4 of MiniMax-M1, without a lower bound."""
    return mean_over_tokens(
        [-ratio(row).clamp(max=1.2).detach() * row["advantage"] * row["log_prob"] for row in of_all(micro_batches)]
    )


def gmpo(micro_batches):
    """The mean of each micro-batch, added up."""
    total = 0
    for rows in micro_batches:
        terms = []
        for row in rows:
            difference, a = row["log_prob"] - row["old"], row["advantage"]
            bounded = difference.clamp(max=0.4) if a > 0 else difference.clamp(min=-0.4)
            terms.append(-a * bounded.mean().exp())
        total = total + torch.stack(terms).mean()
    return total


def covariances(rows):
    """Of one micro-batch, (tokens,)."""
    a = torch.cat([row["advantage"].expand(len(row["log_prob"])) for row in rows])
    log_prob = torch.cat([row["log_prob"] for row in rows]).detach()
    return (a - a.mean()) * (log_prob - log_prob.mean())


def clip_cov(micro_batches):
    """Of each micro-batch one token, drawn among those of a high covariance that are not clipped, has no gradient."""
    terms, drawable = [], []
    for rows in micro_batches:
        r, a = (
            torch.cat([ratio(row) for row in rows]),
            torch.cat([row["advantage"].expand(len(row["old"])) for row in rows]),
        )
        free = ~(((r > 2) & (a > 0)) | ((r < 0) & (a < 0)))
        covariance = covariances(rows)
        drawable.append(((covariance > 1) & (covariance < 5) & free).nonzero().squeeze(1).tolist() or [None])
        terms.append(-torch.minimum(r * a, r.clamp(0, 2) * a))
    count = sum(len(term) for term in terms)
    for drawn in itertools.product(*drawable):
        kept = [
            term if token is None else torch.cat([term[:token], term[token + 1 :]])
            for term, token in zip(terms, drawn, strict=True)
        ]
        yield torch.cat(kept).sum() / count


def kl_cov(micro_batches):
    """The token of the highest covariance of each micro-batch pays for its log-ratio; nothing is clipped."""
    terms = []
    for rows in micro_batches:
        paying = covariances(rows).argmax()
        moved = torch.cat([row["log_prob"] - row["old"] for row in rows])
        a = torch.cat([row["advantage"].expand(len(row["old"])) for row in rows])
        penalty = torch.zeros_like(moved)
        penalty[paying] = moved[paying].abs()
        terms.append(-a * moved.exp() + penalty)
    return mean_over_tokens(terms)
