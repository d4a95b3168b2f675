"""How long does a step of Qwen2.5-32B sample, and what of it is thrown away? Simulated, not measured.

    python -m benchmarks.sampling        # benchmarks/results/sampling_32b.csv and docs/sampling.svg, some minutes
    python -m benchmarks.sampling --curve measured.csv --output other.csv

A discrete-event simulation of one step of DAPO's dynamic sampling: 512 prompts x 16 responses on 32 vLLM replicas (16
nodes of 8 GPUs, tensor parallel 4). The sampler follows `ReplayBuffer.sample` of verl 0.9.1
(verl/trainer/ppo/v1/replay_buffer.py); tests/benchmarks/test_sampling.py drives that very class through the same
simulated replicas and compares. Every response that runs on a replica gains tokens at the same pace, which depends on
how many run there: the curve, a CSV with the columns `batch` and `tokens_per_second` (of the whole replica).

What is assumed stands in `Questions`, `Machine` and `rest`; docs/performance.md has the results and what they leave
out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gtpo_verl.report.intervals import half_width

ROOT = Path(__file__).parents[1]
CURVE = ROOT / "benchmarks/curves/qwen2.5_32b_tp4_h200_roofline.csv"
RESULTS = ROOT / "benchmarks/results/sampling_32b.csv"
FIGURE = ROOT / "docs/sampling.svg"
GROUP = 16  # responses a prompt
BATCH = 512  # prompts that a step trains on
POLL = 2.0  # seconds between two looks (`gtpo_verl.poll_interval`)
SEEDS = 20


# ---- what is sampled ----


@dataclass(frozen=True)
class Questions:
    """Lengths of responses and shares of right ones.

    A question has a difficulty, standard normal. The logarithm of a response's length is normal around a mean that
    grows with it; the question's share of right responses is the logistic function of a normal that falls with it.

    Attributes:
        uniform: share of groups whose responses are all right or all wrong.
        mean: tokens of a response, after the cut.
        sigma: standard deviation of the logarithm of a length, before the cut (`benchmarks/estimators.py` has 0.7 too).
        cut: longest response.
        between: share of that variance that lies between questions.
        hardness: correlation of difficulty with the share of right responses, from 0 to 1.
        drift: by how much larger `uniform` is than it was in the step before.
        accuracy: share of right responses at the middle difficulty; below 0.5 uniform groups are mostly wrong and long.
    """

    uniform: float = 0.5
    mean: float = 5_000
    sigma: float = 0.7
    cut: int = 20_480
    between: float = 0.3
    hardness: float = 0.5
    accuracy: float = 0.5
    drift: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Lengths, (count, GROUP) whole tokens, and which groups are uniform, (count,)."""
        difficulty, noise = rng.standard_normal((2, count, 1))
        within = rng.standard_normal((count, GROUP))
        logs = np.sqrt(self.between) * difficulty + np.sqrt(1 - self.between) * within
        lengths = np.exp(_log_mean(self.mean, self.sigma, self.cut) + self.sigma * logs)
        talent = np.sqrt(1 - self.hardness**2) * noise - self.hardness * difficulty
        right = rng.random((count, GROUP)) < self._right(talent)
        count_right = right.sum(axis=1)
        return np.ceil(np.minimum(lengths, self.cut)), (count_right == 0) | (count_right == GROUP)

    def _right(self, talent: NDArray[np.float64]) -> NDArray[np.float64]:
        middle = np.log(self.accuracy / (1 - self.accuracy))
        return 1 / (1 + np.exp(-(middle + _spread(self.uniform, middle) * talent)))


def _bisect(rises: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return (low + high) / 2


def _normal(nodes: int = 400) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points and weights of the standard normal."""
    points = np.linspace(-8, 8, nodes)
    weights = np.exp(-(points**2) / 2)
    return points, weights / weights.sum()


@cache
def _log_mean(mean: float, sigma: float, cut: float) -> float:
    """Mean of the logarithm with which lengths of at most `cut` have the mean `mean`."""
    points, weights = _normal(4000)
    return _bisect(
        lambda m: float(weights @ np.minimum(np.exp(m + sigma * points), cut)), mean, 0.0, float(np.log(cut))
    )


@cache
def _spread(uniform: float, middle: float) -> float:
    """Standard deviation of the logit with which a share `uniform` of groups is all right or all wrong."""
    points, weights = _normal()

    def share(spread: float) -> float:
        right = 1 / (1 + np.exp(-(middle + spread * points)))
        return float(weights @ (right**GROUP + (1 - right) ** GROUP))

    return _bisect(share, uniform, 0.0, 60.0)


# ---- what it runs on ----


def roofline(
    batch: NDArray[np.float64], context: float = 4_000, efficiency: float = 0.75, overhead: float = 0.005
) -> NDArray[np.float64]:
    """Tokens a second of Qwen2.5-32B in bf16 on 4 H200, tensor parallel: an estimate, which no measurement backs.

    A step reads the weights and every response's keys and values from memory, or computes for longer than it reads the
    weights, and has an overhead.

    Args:
        batch: responses that run.
        context: tokens that a response has at a time, averaged over all tokens: E[length^2] / 2 E[length].
        efficiency: of the published 4.8 TB/s; a copy reached 3.0 of an H100's 3.35 (docs/performance.md).
        overhead: seconds: 128 all-reduces of some 15 us; 3 ms for scheduler, sampler and log-probabilities.
    """
    cards, bandwidth = 4, 4.8e12 * efficiency
    parameters, peak = 32.76e9, 989e12 * 0.6  # matrix products reach 60 % of the peak
    key_values = 2 * 64 * 8 * 128 * 2  # bytes a token: keys and values, layers, heads, head's width, bf16
    weights = 2 * parameters / cards / bandwidth
    products = 2 * parameters * batch / cards / peak
    reads = batch * context * key_values / cards / bandwidth
    return batch / (overhead + np.maximum(weights, products) + reads)


BATCHES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024], dtype=float)
Curve = tuple[tuple[float, float], ...]


def as_curve(rates: NDArray[np.float64]) -> Curve:
    return tuple((int(batch), round(float(rate), 1)) for batch, rate in zip(BATCHES, rates, strict=True))


@dataclass(frozen=True)
class Machine:
    """Replicas of vLLM.

    Attributes:
        replicas: of them; 32 are 16 nodes of 8 GPUs with tensor parallel 4.
        curve: (batch, tokens a second) of a replica, rising in batch; between and beyond, a decoding step's seconds are
            linear in the batch.
        running: responses that a replica runs at once (`rollout.max_num_seqs`, 256 in verl).
        cache: tokens that its KV cache holds; 4 x 0.8 x 150 GB less weights and buffers are 1.5 million of 256 KiB.
        prefill: tokens a second at which a response that was put off is computed anew, 60 % of the peak.
    """

    curve: Curve
    replicas: int = 32
    running: int = 256
    cache: float = 1_500_000
    prefill: float = 36_000

    def paces(self) -> list[float]:
        """Seconds a token for 0, 1, ... responses that run."""
        batch, rate = (np.array(column, dtype=float) for column in zip(*self.curve, strict=True))
        step = batch / rate
        wanted = np.arange(self.running + 1, dtype=float)
        paces = np.interp(wanted, batch, step)
        if len(batch) > 1:
            slope = (step[-1] - step[-2]) / (batch[-1] - batch[-2])
            beyond = wanted > batch[-1]
            paces[beyond] = step[-1] + slope * (wanted[beyond] - batch[-1])
        return paces.tolist()


def read_curve(path: Path) -> Curve:
    """A curve from a CSV with the columns `batch` and `tokens_per_second`, by batch.

    Raises:
        ValueError: no such columns, no rows, or values that are not positive and rising in `batch`, by file and row.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        if not {"batch", "tokens_per_second"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{path}: needs the columns batch and tokens_per_second, has {reader.fieldnames}")
        points: list[tuple[float, float]] = []
        for number, row in enumerate(reader, start=1):
            try:
                batch, rate = float(row["batch"]), float(row["tokens_per_second"])
            except (TypeError, ValueError):
                raise ValueError(f"{path}: row {number} holds no two numbers: {row}") from None
            if not (np.isfinite([batch, rate]).all() and rate > 0 and batch > (points[-1][0] if points else 0)):
                raise ValueError(f"{path}: row {number}: batch must rise and both must be positive: {row}")
            points.append((batch, rate))
    if not points:
        raise ValueError(f"{path}: no rows")
    return tuple(points)


class Replica:
    """A vLLM server: first come, first served; the newest is put off, and computed anew, when the KV cache is full."""

    def __init__(self, machine: Machine, paces: Sequence[float]):
        self.machine, self.paces = machine, paces
        self.now = 0.0
        self.grown = 0.0  # tokens that a response would have that ran since the start
        self.used = 0.0  # tokens in the KV cache
        self.running: dict[int, float] = {}  # response: `grown` at its end; in the order of admission
        self.ends: list[tuple[float, int]] = []  # a heap of the same, with leftovers of those put off
        self.waiting: deque[tuple[int, float, float]] = deque()  # response, its length, tokens that it had

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def advance(self, until: float, lengths: NDArray[np.float64]) -> list[int]:
        """Runs up to a time; returns the responses that ended, in order."""
        ended: list[int] = []
        while self.now < until:
            self._admit()
            count = len(self.running)
            if not count:
                self.now = until
                break
            while self.running.get(self.ends[0][1]) != self.ends[0][0]:
                heapq.heappop(self.ends)
            end, response = self.ends[0]
            to_full = (self.machine.cache - self.used) / count
            step, pace = min(end - self.grown, to_full), self.paces[count]
            if self.now + step * pace > until:
                step = (until - self.now) / pace
                self.now = until
            else:
                self.now += step * pace
                if end - self.grown <= to_full:
                    heapq.heappop(self.ends)
                    del self.running[response]
                    self.used -= lengths[response]
                    ended.append(response)
                else:
                    self._put_off(step, lengths)
            self.used += count * step
            self.grown += step
        return ended

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.machine.running:
            response, length, had = self.waiting[0]
            # A block of 16 tokens stays free for each, or the next would be put off at once.
            if self.running and self.used + had + 16 * (len(self.running) + 1) > self.machine.cache:
                break
            self.waiting.popleft()
            self.now += had / self.machine.prefill
            self.used += had
            self.running[response] = self.grown + length - had
            heapq.heappush(self.ends, (self.running[response], response))

    def _put_off(self, step: float, lengths: NDArray[np.float64]) -> None:
        response, end = self.running.popitem()
        had = lengths[response] - (end - self.grown - step)
        self.used -= had
        self.waiting.appendleft((response, lengths[response], had))


class Cluster:
    """Replicas, and the prompts that they were asked for, in a fixed order for each seed."""

    def __init__(self, machine: Machine, questions: Questions, seed: int):
        if machine.cache < questions.cut:
            raise ValueError(f"a KV cache of {machine.cache} tokens does not hold a response of {questions.cut}")
        self.seed, self.rng = seed, np.random.default_rng((seed, 0))
        self.questions = questions
        self.lengths, self.uniform = np.empty(0), np.empty(0, dtype=bool)
        paces = machine.paces()
        self.replicas = [Replica(machine, paces) for _ in range(machine.replicas)]
        self.now = 0.0
        self.asked = 0  # prompts
        self.left: list[int] = []  # of a prompt: responses that have not ended
        self.ended: list[int] = []  # prompts, in order

    @property
    def in_flight(self) -> int:
        return self.asked - len(self.ended)

    def usable_before(self, batch: int) -> float:
        """The share of usable groups that a step before found among so many as gave it a batch."""
        tried = math.ceil(batch / (1 - self.questions.uniform))
        before = replace(self.questions, uniform=self.questions.uniform - self.questions.drift)
        _, uniform = before.draw(np.random.default_rng((self.seed, 1)), tried)
        return max(1, tried - int(uniform.sum())) / tried

    def ask(self, prompts: int) -> None:
        """Sends the next prompts' responses, each to the replica that has the fewest, as verl's balancer does."""
        while len(self.uniform) < self.asked + prompts:
            lengths, uniform = self.questions.draw(self.rng, BATCH)
            self.lengths, self.uniform = np.append(self.lengths, lengths), np.append(self.uniform, uniform)
        loads = [(replica.load, index) for index, replica in enumerate(self.replicas)]
        heapq.heapify(loads)
        for response in range(self.asked * GROUP, (self.asked + prompts) * GROUP):
            load, index = loads[0]
            self.replicas[index].waiting.append((response, float(self.lengths[response]), 0.0))
            heapq.heapreplace(loads, (load + 1, index))
        self.left += [GROUP] * prompts
        self.asked += prompts

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for replica in self.replicas:
            for response in replica.advance(self.now, self.lengths):
                self.left[response // GROUP] -= 1
                if not self.left[response // GROUP]:
                    self.ended.append(response // GROUP)


# ---- the sampler ----


@dataclass(frozen=True)
class Rules:
    """How a batch is sampled.

    Attributes:
        first: prompts asked for at the start, in batches; verl has 1.
        expected: `first` counts in the prompts that should fill the batch, by the share of usable groups of the step
            before (`gtpo_verl.first_batch`).
        inflight: batches of prompts in flight that refills fill up to (`filter_groups.max_inflight_gen_batches`).
        drain: what ends a step once enough groups are there: "all" in flight have ended, as in verl; "none" is awaited;
            "in order" takes the first groups in the order in which they were asked for, and awaits those before them.
        waves: refills are whole first batches, each asked for when the one before has ended, as in DAPO's own code.
    """

    first: float = 1
    expected: bool = False
    inflight: float = 1
    drain: str = "all"
    waves: bool = False

    def prompts(self, batch: int, usable: float) -> int:
        """Asked for at the start, where `usable` was the share of usable groups of the step before."""
        return max(batch, math.ceil(self.first * batch / (usable if self.expected else 1)))


VERL = Rules()


@dataclass(frozen=True)
class Sampled:
    """A batch: seconds it took, asked-for prompts by what became of them, and tokens.

    Attributes:
        seconds: of the whole rollout.
        asked: prompts: the batch, and `uniform`, `surplus` and `aborted` ones that were thrown away.
        refills: (seconds, prompts) of each request after the first.
        tokens: generated, of all responses, also of those cut short.
        wasted: share of them that is not trained on.
        kept_length: mean of the groups that may be trained on, of which verl takes an arbitrary batch.
        mixed_length: mean of all asked-for groups that are not uniform, had they ended.
    """

    seconds: float
    asked: int
    uniform: int
    surplus: int
    aborted: int
    tokens: float
    wasted: float
    kept_length: float
    mixed_length: float
    refills: tuple[tuple[float, int], ...] = field(repr=False)

    @property
    def bias(self) -> float:
        """By how much what is kept is longer than what was sampled, as a share."""
        return self.kept_length / self.mixed_length - 1


def sample(cluster: Cluster, rules: Rules = VERL, batch: int = BATCH, poll: float = POLL) -> Sampled:
    """A batch by `rules`, as `ReplayBuffer.sample` does it: a look every `poll` seconds, two prompts for each that is
    thrown away, as far as there is room, and none once there are enough."""
    credit, seen = 0, 0
    mixed: list[int] = []
    refills: list[tuple[float, int]] = []
    first = rules.prompts(batch, cluster.usable_before(batch))
    limit = math.ceil(rules.inflight * batch)
    cluster.ask(first)
    while True:
        new = [prompt for prompt in cluster.ended[seen:] if not cluster.uniform[prompt]]
        thrown = len(cluster.ended) - seen - len(new)
        seen, mixed = len(cluster.ended), mixed + new
        enough = len(mixed) >= batch
        if not enough:
            if rules.waves:
                wanted = 0 if cluster.in_flight else first
            else:
                credit += 2 * thrown
                wanted = min(credit, max(0, limit - cluster.in_flight))
                credit -= wanted
            if wanted:
                cluster.ask(wanted)
                refills.append((cluster.now, wanted))
        elif not cluster.in_flight or _ends_early(cluster, rules, mixed, batch):
            return _account(cluster, rules, mixed, batch, tuple(refills))
        cluster.advance(poll)


def _ends_early(cluster: Cluster, rules: Rules, mixed: list[int], batch: int) -> bool:
    if rules.drain == "in order":
        return not any(cluster.left[: sorted(mixed)[batch - 1]])
    return rules.drain == "none"


def _account(
    cluster: Cluster, rules: Rules, mixed: list[int], batch: int, refills: tuple[tuple[float, int], ...]
) -> Sampled:
    lengths = cluster.lengths[: cluster.asked * GROUP].reshape(-1, GROUP).mean(axis=1)
    usable = sorted(mixed)[:batch] if rules.drain == "in order" else mixed
    unfinished = sum(length - had for one in cluster.replicas for _, length, had in one.waiting)
    unfinished += sum(end - one.grown for one in cluster.replicas for end in one.running.values())
    tokens = float(lengths.sum() * GROUP - unfinished)
    kept_length = float(lengths[usable].mean())
    return Sampled(
        seconds=cluster.now,
        asked=cluster.asked,
        uniform=len(cluster.ended) - len(mixed),
        surplus=len(mixed) - batch,
        aborted=cluster.in_flight,
        tokens=tokens,
        wasted=1 - kept_length * batch * GROUP / tokens,
        kept_length=kept_length,
        mixed_length=float(lengths[~cluster.uniform[: cluster.asked]].mean()),
        refills=refills,
    )


# ---- the rest of a step, and the table ----

PEAK = 989e12  # operations a second of a card, bf16
PARAMETERS = 32.76e9


def rest(tokens: float, gpus: int) -> float:
    """Seconds of a step beside its rollout, for so many tokens: an estimate.

    The update makes 6 operations a parameter and token at 0.35 of the peak, the log-prob pass takes 0.45 of that: both
    as measured on two GPUs with two layers of 7B width (benchmarks/results/two_gpus_h200.csv, second step). 30 s are
    for what has no measurement at this size: weights to vLLM, moving what is offloaded, advantages.
    """
    return 1.45 * 6 * PARAMETERS * tokens / (0.35 * gpus * PEAK) + 30


@dataclass(frozen=True)
class Setting:
    """A row of the sensitivities: what differs from the first one."""

    machine: Machine
    questions: Questions = Questions()

    @property
    def gpus(self) -> int:
        return 4 * self.machine.replicas


POLICIES = {
    "verl": VERL,
    "max_inflight_gen_batches=2": Rules(inflight=2),
    "max_inflight_gen_batches=3": Rules(inflight=3),
    "first batch x1.5": Rules(first=1.5),
    "first batch x2": Rules(first=2),
    "first batch x2.5": Rules(first=2.5),
    "first batch x3": Rules(first=3),
    "first batch x3 and inflight=3": Rules(first=3, inflight=3),
    "waves of 1536 (DAPO)": Rules(first=3, waves=True),
    "no drain": Rules(drain="none"),
    "no drain but in order": Rules(drain="in order"),
    "first batch x3 and no drain": Rules(first=3, drain="none"),
    "as many as expected x1.05": Rules(first=1.05, expected=True, inflight=0.1),
    "as many as expected x1.1": Rules(first=1.1, expected=True, inflight=0.1),
    "as many as expected x1.2": Rules(first=1.2, expected=True, inflight=0.1),
    "as many as expected x1.2 and verl's refills": Rules(first=1.2, expected=True),
}
OURS = "as many as expected x1.2"
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
# Of the sensitivities.
FEWER_POLICIES = (
    "verl",
    "max_inflight_gen_batches=3",
    "first batch x3",
    "waves of 1536 (DAPO)",
    "no drain",
    "as many as expected x1.1",
    OURS,
)
FEWER_SHARES = (0.2, 0.5, 0.7)
FEWER_SEEDS = 10
BASE = "16x8"


def scaled(curve: Curve, factor: float) -> Curve:
    return tuple((batch, rate * factor) for batch, rate in curve)


def settings(curve: Curve) -> dict[str, Setting]:
    """The sensitivities by name, the first one `BASE`."""
    machine = Machine(curve)
    seconds = {batch: batch / rate for batch, rate in curve}
    full = machine.paces()[256]
    small = replace(machine, curve=scaled(curve, 0.7), cache=750_000)
    return {
        BASE: Setting(machine),
        "16x8 max_num_seqs=512": Setting(replace(machine, running=512)),
        "16x8 max_num_seqs=1024": Setting(replace(machine, running=1024)),
        "16x8 80 GB cards": Setting(small),
        "16x8 80 GB cards max_num_seqs=1024": Setting(replace(small, running=1024)),
        "8x8": Setting(replace(machine, replicas=16)),
        "8x8 max_num_seqs=1024": Setting(replace(machine, replicas=16, running=1024)),
        "8x8 80 GB cards": Setting(replace(small, replicas=16)),
        "curve x0.7": Setting(replace(machine, curve=scaled(curve, 0.7))),
        "curve x1.4": Setting(replace(machine, curve=scaled(curve, 1.4))),
        "overhead doubled": Setting(replace(machine, curve=tuple((b, b / (s + 0.005)) for b, s in seconds.items()))),
        "flat step": Setting(replace(machine, curve=tuple((b, b / full) for b in seconds))),
        "flat rate": Setting(replace(machine, curve=tuple((b, 256 / full) for b in seconds))),
        "mean 2500": Setting(machine, Questions(mean=2_500)),
        "mean 10000": Setting(machine, Questions(mean=10_000)),
        "sigma 1.0": Setting(machine, Questions(sigma=1.0)),
        "length tells nothing": Setting(machine, Questions(hardness=0)),
        "length tells much": Setting(machine, Questions(hardness=0.9, between=0.6)),
        "mostly wrong": Setting(machine, Questions(accuracy=0.2)),
        "5 points more uniform than in the step before": Setting(machine, Questions(drift=0.05)),
        "5 points fewer uniform than in the step before": Setting(machine, Questions(drift=-0.05)),
    }


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    setting: str
    uniform: float
    policy: str
    seeds: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.setting, f"{self.uniform:g}", self.policy


def cases(names: Iterable[str]) -> list[Case]:
    """All policies and shares on the first setting, fewer on the others."""
    found = [Case(BASE, uniform, policy, SEEDS) for uniform in SHARES for policy in POLICIES]
    found += [
        Case(name, uniform, policy, FEWER_SEEDS)
        for name in names
        if name != BASE
        for uniform in FEWER_SHARES
        for policy in FEWER_POLICIES
    ]
    return found


def steps(setting: Setting, case: Case, rules: Rules) -> tuple[list[Sampled], NDArray[np.float64]]:
    """A batch of each seed, and the seconds of its whole step."""
    questions = replace(setting.questions, uniform=case.uniform)
    batches = [sample(Cluster(setting.machine, questions, seed), rules) for seed in range(case.seeds)]
    trained = [one.kept_length * BATCH * GROUP for one in batches]
    whole = [one.seconds + rest(tokens, setting.gpus) for one, tokens in zip(batches, trained, strict=True)]
    return batches, np.array(whole)


def measured(setting: Setting, several: Sequence[Case]) -> list[dict[str, str]]:
    """The rows of cases of one setting and share, verl's first: means over the seeds, and `_pm`, half the width of
    their 95 % intervals. `saved` is the share of a step of verl's rules, seed by seed; `gpu_hours` are those of 200
    such steps, without validation."""
    rows = []
    verl: NDArray[np.float64] | None = None
    for case in several:
        batches, whole = steps(setting, case, POLICIES[case.policy])
        verl = whole if verl is None else verl
        values = {
            "rollout_s": np.array([one.seconds for one in batches]),
            "step_s": whole,
            "saved": 1 - whole / verl,
            "bias": np.array([one.bias for one in batches]),
        }
        row = dict(zip(("setting", "uniform", "policy"), case.key, strict=True)) | {"seeds": str(case.seeds)}
        for name, each in values.items():
            width = float(half_width((each - each.mean())[:, None], np.array([len(each)]))[0])
            digits = 1 if name.endswith("_s") else 4
            row |= {name: f"{each.mean():.{digits}f}", f"{name}_pm": f"{width:.{digits}f}"}
        for name in ("asked", "uniform", "surplus", "aborted"):
            row[f"prompts_{name}"] = f"{np.mean([getattr(one, name) for one in batches]):.1f}"
        row["wasted"] = f"{np.mean([one.wasted for one in batches]):.3f}"
        row["gpu_hours"] = f"{200 * whole.mean() * setting.gpus / 3600:.0f}"
        rows.append(row)
    return rows


def table(curve: Curve, wanted: Callable[[Case], bool] = lambda case: True) -> list[dict[str, str]]:
    """The rows of the CSV, those that are wanted; with any of a setting and share verl's must be."""
    known = settings(curve)
    chosen = [case for case in cases(known) if wanted(case)]
    together = [list(some) for _, some in groupby(chosen, lambda case: (case.setting, case.uniform))]
    with ProcessPoolExecutor() as pool:
        done = pool.map(measured, [known[some[0].setting] for some in together], together)
        return [row for rows in done for row in rows]


def fingerprint(path: Path) -> str:
    return f"table-sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def draw(table_path: Path, output: Path) -> None:
    """Seconds of a step, prompts, and bias by the share of uniform groups, from the CSV."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with table_path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    shown = {
        "verl": "verl (512, two for each thrown away)",
        "max_inflight_gen_batches=3": "verl, max_inflight_gen_batches=3",
        "first batch x3": "first batch x3, verl's refills",
        "waves of 1536 (DAPO)": "waves of 1536 (DAPO)",
        "no drain": "verl, in-flight groups aborted",
        OURS: "as many as expected x1.2",
    }
    plt.rcParams["svg.hashsalt"] = "sampling"
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    columns = (("step_s", "step, s"), ("prompts_asked", "prompts asked for"), ("bias", "length of what is kept, %"))
    for axis, (column, label) in zip(axes, columns, strict=True):
        for policy, name in shown.items():
            mine = [row for row in rows if row["setting"] == BASE and row["policy"] == policy]
            factor = 100 if column == "bias" else 1
            axis.errorbar(
                [100 * float(row["uniform"]) for row in mine],
                [factor * float(row[column]) for row in mine],
                [factor * float(row.get(f"{column}_pm", 0)) for row in mine],
                label=name,
                linewidth=2 if policy == OURS else 1,
                marker="o",
                markersize=3,
            )
        axis.set(xlabel="uniform groups, %", ylabel=label)
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    figure.savefig(output, metadata={"Date": None, "Description": fingerprint(table_path)})


def main() -> None:
    """Simulate, write the table, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", type=Path, default=CURVE, help="tokens a second of a replica by batch")
    parser.add_argument("--output", type=Path, default=RESULTS, help="table; the figure of another one lies beside it")
    parser.add_argument("--draw-only", action="store_true", help="the figure of a table that is there")
    options = parser.parse_args()
    if not options.draw_only:
        rows = table(read_curve(options.curve))
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(options.output, FIGURE if options.output == RESULTS else options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
