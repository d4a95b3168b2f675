"""The paper in plain Python floats and loops, written from its equations: shares no code with `gtpo_verl`.

A row is one response: `{"uid": ..., "success": bool, "entropy": [nats of each of its tokens]}`. Options are nested
dicts with the keys of `algorithm.gtpo`; those left out have the documented defaults.
"""

import math
from fractions import Fraction

DEFAULTS = {
    "alpha": 0.1,
    "beta": 0.1,
    "alpha1": 1.0,
    "alpha2": 0.1,
    "beta1": 1.0,
    "beta2": 0.1,
    "clip": {"enable": None, "alpha1": 0.9, "alpha2": 0.1, "kappa": 2.0},
    "length_penalty": {
        "enable": False,
        "kind": "overlong",
        "max_length": None,
        "buffer": 4096,
        "denominator": "max_length",
        "on": "success",
    },
    "relative_to": "position",
    "sequence_entropy": "arithmetic",
    "normalize": {"scope": "group", "over": None},
    "uniform_groups": "zero",
    "sign_guard": False,
    "entropy_floor": 1e-6,
    "epsilon": 1e-6,
}


def complete(options):
    result = {}
    for key, default in DEFAULTS.items():
        given = options.get(key, default)
        result[key] = {**default, **given} if isinstance(default, dict) else given
    return result


def advantages(estimator, rows, options):
    """One list of token advantages for each row."""
    o = complete(options)
    rows = [{**row, "entropy": [max(h, 0.0) for h in row["entropy"]]} for row in rows]
    result = [[0.0] * len(row["entropy"]) for row in rows]
    groups = {}
    for i, row in enumerate(rows):
        if row["entropy"]:
            groups.setdefault(row["uid"], []).append(i)
    if o["uniform_groups"] == "zero":
        groups = {uid: g for uid, g in groups.items() if len({rows[i]["success"] for i in g}) == 2}

    rewards = rewards_of(estimator, rows, groups, o)

    pools = list(groups.values()) if o["normalize"]["scope"] == "group" else [[i for g in groups.values() for i in g]]
    for pool in pools:
        pool = set(pool)
        items = {item: pair for item, pair in rewards.items() if item[0] in pool}
        for (i, t), value in normalized(estimator, rows, items, o).items():
            for position in range(len(rows[i]["entropy"])) if t is None else [t]:
                result[i][position] = guard(value, rows[i]["success"], o)
    return result


def rewards_of(estimator, rows, groups, o):
    """(i, t) -> (r+, r-); t is None for a whole response."""
    rewards = {}
    for members in groups.values():
        right = [i for i in members if rows[i]["success"]]
        wrong = [i for i in members if not rows[i]["success"]]
        shaper = token_rewards if estimator.startswith("gtpo") else sequence_rewards
        rewards.update(shaper(estimator, rows, right, wrong, o))
    return rewards


def shaped(estimator, rows, options):
    """One list of token rewards for each row."""
    rows = [{**row, "entropy": [max(h, 0.0) for h in row["entropy"]]} for row in rows]
    groups = {}
    for i, row in enumerate(rows):
        if row["entropy"]:
            groups.setdefault(row["uid"], []).append(i)
    rewards = rewards_of(estimator, rows, groups, complete(options))
    return [
        [sum(rewards[(i, t) if (i, t) in rewards else (i, None)]) for t in range(len(row["entropy"]))]
        for i, row in enumerate(rows)
    ]


def over_mean(value, values):
    mean = math.fsum(values) / len(values)
    return 1.0 if mean == 0 else value / mean


def compared_with(rows, side, i, t, how):
    """The entropies that token t of response i is compared with."""
    if how == "position":
        return [rows[k]["entropy"][t] for k in side if len(rows[k]["entropy"]) > t]
    if how == "response":
        return rows[i]["entropy"]
    return [h for k in side for h in rows[k]["entropy"]]


def token_rewards(estimator, rows, right, wrong, o):
    rewards = {}
    clip = o["clip"]
    clipping = estimator == "gtpo_v2" if clip["enable"] is None else clip["enable"]
    means = {}

    def ratio(i, t, side, transform):
        # The mean over response or group is the same for many tokens: remembered, or long responses take minutes.
        key = (side[0], transform, t if o["relative_to"] == "position" else i if o["relative_to"] == "response" else 0)
        if key not in means:
            values = [transform(h) for h in compared_with(rows, side, i, t, o["relative_to"])]
            means[key] = math.fsum(values) / len(values)
        return 1.0 if means[key] == 0 else transform(rows[i]["entropy"][t]) / means[key]

    def same(h):
        return h

    def inverse(h):
        return 1 / max(h, o["entropy_floor"])

    lengths = {i: len(rows[i]["entropy"]) for i in right + wrong}
    relative = grop({i: lengths[i] for i in right}, {i: lengths[i] for i in wrong})
    grouped = o["length_penalty"]["kind"] == "grop"
    for i in right + wrong:
        penalty = overlong(lengths[i], o["length_penalty"])
        if o["length_penalty"]["enable"] and grouped:
            penalty = relative[i]
        for t in range(len(rows[i]["entropy"])):
            plus = minus = 0.0
            if i in right:
                x = ratio(i, t, right, same)
                if estimator == "gtpo_v3":
                    plus = o["alpha1"] + o["alpha2"] * x
                elif clipping:
                    plus = max(clip["alpha1"] + clip["alpha2"] * x, 1.0)
                    plus = min(plus, clip["alpha1"] + clip["alpha1"] / clip["kappa"])
                else:
                    plus = 1 + o["alpha"] * x
                plus += penalty
            else:
                x = ratio(i, t, wrong, inverse) if estimator != "gtpo_v1" else None
                if estimator == "gtpo_v2":
                    minus = -x
                elif estimator == "gtpo_v3":
                    minus = -o["alpha1"] - o["alpha2"] * x
                if grouped or o["length_penalty"]["on"] == "all":
                    if estimator == "gtpo_v1":
                        plus += penalty
                    else:
                        minus += penalty
            rewards[i, t] = (plus, minus)
    return rewards


def grop(right, wrong):
    """Group Relative Overlong Punishment from the lengths of right and wrong responses, as restated by others."""
    n, m = len(right), len(wrong)
    result = dict.fromkeys([*right, *wrong], 0.0)
    if 4 * n >= 3 * (n + m):
        looked_at, punished = right, right
    elif 4 * n <= n + m:
        return result
    else:
        looked_at, punished = right | wrong, right if n > m else wrong
    lengths = list(looked_at.values())
    knee = max((min(lengths) + max(lengths)) / 2, sum(lengths) / len(lengths))
    for i, length in punished.items():
        if length >= 2 * knee:
            result[i] = -0.5
        elif length >= knee:
            result[i] = -0.5 * (length - knee) / knee
    return result


def overlong(length, penalty):
    if not penalty["enable"] or penalty["kind"] == "grop":
        return 0.0
    start = penalty["max_length"] - penalty["buffer"]
    if length <= start:
        return 0.0
    if length > penalty["max_length"]:
        return -1.0
    return (start - length) / penalty[penalty["denominator"]]


def sequence_rewards(estimator, rows, right, wrong, o):
    def entropy(i):
        h = rows[i]["entropy"]
        if o["sequence_entropy"] == "geometric":
            return math.exp(math.fsum(math.log(max(x, o["entropy_floor"])) for x in h) / len(h))
        return math.fsum(h) / len(h)

    def inverse(i):
        return 1 / max(entropy(i), o["entropy_floor"])

    rewards = {}
    for i in right:
        x = over_mean(entropy(i), [entropy(k) for k in right])
        rewards[i, None] = (o["beta1"] + o["beta2"] * x if estimator == "grpo_s_v3" else 1 + o["beta"] * x, 0.0)
    for i in wrong:
        x = over_mean(inverse(i), [inverse(k) for k in wrong])
        rewards[i, None] = (0.0, {"1": 0.0, "2": -x, "3": -o["beta1"] - o["beta2"] * x}[estimator[-1]])
    return rewards


def normalized(estimator, rows, items, o):
    over = o["normalize"]["over"] or {"2": "all", "3": "joint"}.get(estimator[-1])
    right = {item for item in items if rows[item[0]]["success"]}
    plus = {item: pair[0] for item, pair in items.items()}
    minus = {item: pair[1] for item, pair in items.items()}
    total = {item: pair[0] + pair[1] for item, pair in items.items()}
    if estimator.endswith("v1"):
        return z_scores(plus, o)
    if over == "all":
        z_plus, z_minus = z_scores(plus, o), z_scores(minus, o)
        return {item: z_plus[item] if item in right else z_minus[item] for item in items}
    if over == "joint":
        return z_scores(total, o)
    sides = [{k: v for k, v in total.items() if (k in right) == side} for side in (True, False)]
    return z_scores(sides[0], o) | z_scores(sides[1], o)


def z_scores(values, o):
    numbers = list(values.values())
    if len(numbers) < 2 or max(numbers) - min(numbers) <= 1e-13:
        return dict.fromkeys(values, 0.0)
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))
    return {item: (x - mean) / (std + o["epsilon"]) for item, x in values.items()}


def guard(value, success, o):
    if not o["sign_guard"]:
        return value
    return max(value, 0.0) if success else min(value, 0.0)


def forking(entropies, share, scope):
    """Which tokens keep their advantage: one list of bools for each of the lists of entropies."""
    kept = [[False] * len(row) for row in entropies]
    places = [[(i, t) for t in range(len(row))] for i, row in enumerate(entropies)]
    exact = Fraction(share).limit_denominator(10**6)
    for pool in [[place for row in places for place in row]] if scope == "batch" else places:
        ranked = sorted(pool, key=lambda place: -entropies[place[0]][place[1]])  # stable: equal ones stay in order
        for i, t in ranked[: math.ceil(exact * len(pool))]:
            kept[i][t] = True
    return kept


def loss(name, rows, low, high):
    """The mean loss of responses `{"log_prob", "old_log_prob", "advantages"}`, lists over the tokens that exist."""

    def clamped(x):
        return max(-20.0, min(20.0, x))

    def objective(w, a):
        return -min(w * a, max(1 - low, min(1 + high, w)) * a)

    terms = []
    for row in rows:
        log_ratios = [new - old for new, old in zip(row["log_prob"], row["old_log_prob"], strict=True)]
        if not log_ratios:
            continue
        if name == "gtpo":
            terms += [objective(math.exp(clamped(x)), a) for x, a in zip(log_ratios, row["advantages"], strict=True)]
            continue
        if name == "grpo_s":
            w = sum(math.exp(clamped(x)) for x in log_ratios) / len(log_ratios)
        else:
            w = math.exp(clamped(sum(log_ratios) / len(log_ratios)))
        terms.append(objective(w, sum(row["advantages"]) / len(log_ratios)))
    return sum(terms) / len(terms) if terms else 0.0
