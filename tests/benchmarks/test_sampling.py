"""The simulated sampler does what verl's own does, loses nothing, and gives the table that is published."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from verl.trainer.ppo.v1 import replay_buffer as verls_module
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from benchmarks import sampling
from benchmarks.sampling import BASE, BATCHES, CURVE, GROUP, OURS, RESULTS, Cluster, Machine, Questions, Replica, Rules
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer

BATCH = 24
SMALL = Machine(sampling.read_curve(CURVE), replicas=3, running=40, cache=150_000)


# ---- beside verl's own ReplayBuffer ----


class Queue:
    """TransferQueue's table over a simulated cluster, as far as `ReplayBuffer` reads it; two rows a finished group."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.cleared: set[str] = set()

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict]]:
        ended = set(self.cluster.ended)
        table: dict[str, dict] = {}
        for prompt in range(self.cluster.asked):
            if (uid := f"p{prompt}") in self.cleared:
                continue
            status = "finished" if prompt in ended else "running"
            table[uid] = {"is_prompt": True, "global_steps": 1, "status": status}
            if status == "finished":
                table |= {f"{uid}_{session}_0": {"status": "success"} for session in range(2)}
        return {partition_id or "train": table}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        self.cleared.update(key for key in keys if "_" not in key)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, list]:
        def accuracy(key: str) -> float:
            prompt, session, _ = key[1:].split("_")
            return 1.0 if self.cluster.uniform[int(prompt)] else float(session)

        return {"extra_fields": [{"reward_extra_info": {"acc": accuracy(key)}} for key in keys]}


class ByVerl:
    """A batch that a real buffer of verl's samples from simulated replicas, by their clock."""

    def __init__(
        self,
        cluster: Cluster,
        monkeypatch: pytest.MonkeyPatch,
        first: int,
        inflight: int = 1,
        first_batch: float | None = None,
        ours: bool = False,
    ):
        queue = Queue(cluster)
        self.cluster, self.refills = cluster, []
        monkeypatch.setattr(verls_module, "tq", queue)
        monkeypatch.setattr(transfer, "transfer_queue", queue)
        clock = SimpleNamespace(sleep=cluster.advance, time=lambda: cluster.now)
        monkeypatch.setattr(verls_module, "time", clock)
        buffer = ReplayBuffer(
            trainer_mode="sync",
            trainer_config=None,
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs=None,
            poll_interval=sampling.POLL,
            refill_fn=self.ask,
            filter_groups_metric="acc",
            train_batch_size=BATCH,
            gen_batch_size=1,
            max_inflight_gen_batches=inflight,
        )
        if ours:
            buffer = BoundedReplayBuffer.adopt(buffer, 10 * BATCH, sampling.POLL, group_size=2, first_batch=first_batch)
            buffer.usable_share = cluster.usable_before(BATCH)
            first = buffer.groups_at_once(first)
        cluster.ask(first)
        batch, self.metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=BATCH)
        self.kept = {int(key[1:].split("_")[0]) for key in batch.keys}

    def ask(self, prompts: int) -> None:
        self.refills.append((self.cluster.now, prompts))
        self.cluster.ask(prompts)


def check_alike(ours: sampling.Sampled, verls: ByVerl) -> None:
    assert ours.seconds == verls.cluster.now
    assert list(ours.refills) == verls.refills
    assert ours.asked == verls.cluster.asked
    assert ours.uniform == verls.metrics.get("training/filter_groups/evicted_samples", 0)
    assert ours.surplus == verls.metrics.get("training/filter_groups/discarded_surplus_samples", 0)
    assert len(verls.kept) == BATCH
    assert not verls.cluster.uniform[sorted(verls.kept)].any()


@pytest.mark.parametrize("uniform", [0.2, 0.5, 0.7])
@pytest.mark.parametrize(("first", "inflight"), [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (2, 2)])
def test_the_rules_are_those_of_verls_own_buffer(
    first: int, inflight: int, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = Questions(uniform=uniform)
    ours = sampling.sample(Cluster(SMALL, questions, 0), Rules(first=first, inflight=inflight), BATCH)
    verls = ByVerl(Cluster(SMALL, questions, 0), monkeypatch, first * BATCH, inflight)
    check_alike(ours, verls)
    assert ours.refills or first > 1, "a case in which nothing is thrown away says little"


@pytest.mark.parametrize("policy", ["verl", "as many as expected x1.05", "as many as expected x1.1", OURS])
def test_our_buffer_too_and_it_counts_as_many(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = sampling.POLICIES[policy]
    refilled = 0
    for seed in range(5):
        ours = sampling.sample(Cluster(SMALL, Questions(), seed), rules, BATCH)
        first_batch = rules.first if rules.expected else None
        verls = ByVerl(Cluster(SMALL, Questions(), seed), monkeypatch, BATCH, first_batch=first_batch, ours=True)
        check_alike(ours, verls)
        assert verls.metrics["training/sampling/groups_tried"] == ours.asked
        refilled += len(ours.refills)
    assert refilled or rules.first > 1.05, "a case in which the first ones are always enough says little"


# ---- what must hold ----


@pytest.mark.parametrize("cache", [25_000, 150_000, math.inf])
def test_every_response_is_in_one_place(cache: float) -> None:
    cluster = Cluster(replace(SMALL, cache=cache), Questions(), seed=0)
    cluster.ask(BATCH)
    put_off = 0
    for look in range(5000):
        if look == 20:
            cluster.ask(7)
        places = [place for one in cluster.replicas for place in (*one.running, *(w[0] for w in one.waiting))]
        assert len(places) == len(set(places)) == sum(cluster.left)
        assert set(places) | {prompt * GROUP for prompt in cluster.ended} <= set(range(cluster.asked * GROUP))
        assert len(cluster.ended) == len(set(cluster.ended)) == cluster.left.count(0)
        for one in cluster.replicas:
            held = sum(cluster.lengths[response] - (end - one.grown) for response, end in one.running.items())
            assert one.used == pytest.approx(held, abs=1e-3)
            assert one.used <= cache + 1e-3
            assert len(one.running) <= SMALL.running
            put_off += sum(had > 0 for *_, had in one.waiting)
        if not cluster.in_flight and look > 20:
            break
        cluster.advance(sampling.POLL)
    assert sorted(cluster.ended) == list(range(BATCH + 7))
    assert (put_off > 0) == (cache < math.inf)


def test_tokens_are_those_of_the_responses() -> None:
    for drain in ("all", "none", "in order"):
        cluster = Cluster(SMALL, Questions(), seed=0)
        got = sampling.sample(cluster, Rules(drain=drain), BATCH)
        of_ended = sum(cluster.lengths[prompt * GROUP : (prompt + 1) * GROUP].sum() for prompt in cluster.ended)
        of_all = cluster.lengths[: got.asked * GROUP].sum()
        assert got.asked == BATCH + got.uniform + got.surplus + got.aborted
        assert of_ended - 1e-3 <= got.tokens <= of_all + 1e-3
        assert (got.aborted == 0) == (drain == "all") == (got.tokens == pytest.approx(of_all))
        assert got.tokens * (1 - got.wasted) == pytest.approx(got.kept_length * BATCH * GROUP)


def test_a_replica_by_hand() -> None:
    lengths = np.array([100.0, 200.0, 200.0])
    curve = ((1.0, 1.0), (2.0, 1.0))  # a token a second in all: two responses get half a token each

    def ends(cache: float, running: int) -> list[tuple[float, int]]:
        machine = Machine(curve, running=running, cache=cache, prefill=10)
        replica = Replica(machine, machine.paces())
        replica.waiting.extend((response, length, 0.0) for response, length in enumerate(lengths))
        return [(second, one) for second in range(1, 600) for one in replica.advance(second, lengths)]

    assert ends(1000, 1) == [(100, 0), (300, 1), (500, 2)]
    # Two until the first has 100; then the second and the third for 100 tokens, and the third alone.
    assert ends(1000, 2) == [(200, 0), (400, 1), (500, 2)]
    # Room for 240: at 340 s the second holds 170 and the third 70. The third is put off, comes back when the second has
    # ended, 30 s later, is computed anew for 7 s, and has 130 to go.
    assert ends(240, 2) == [(200, 0), (370, 1), (507, 2)]


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(ValueError, match="KV cache of 20000 tokens does not hold a response of 20480"):
        Cluster(replace(SMALL, cache=20_000), Questions(), seed=0)


@pytest.mark.parametrize("rules", [Rules(), Rules(first=3, waves=True), Rules(drain="none"), sampling.POLICIES[OURS]])
def test_twice_as_fast_is_half_as_long(rules: Rules) -> None:
    fast = replace(SMALL, curve=sampling.scaled(SMALL.curve, 2), prefill=2 * SMALL.prefill)
    slow = sampling.sample(Cluster(SMALL, Questions(), 0), rules, BATCH, poll=2.0)
    assert sampling.sample(Cluster(fast, Questions(), 0), rules, BATCH, poll=1.0).seconds == slow.seconds / 2


def test_less_waiting_is_no_longer_and_asks_for_the_same() -> None:
    for seed in range(5):
        for rules in (Rules(), Rules(first=2)):
            got = {
                drain: sampling.sample(Cluster(SMALL, Questions(), seed), replace(rules, drain=drain), BATCH)
                for drain in ("none", "in order", "all")
            }
            assert got["none"].seconds <= got["in order"].seconds <= got["all"].seconds
            assert len({(one.asked, one.refills) for one in got.values()}) == 1


def test_more_is_thrown_away_the_more_groups_are_uniform() -> None:
    for rules in (Rules(), sampling.POLICIES[OURS]):
        asked = [
            np.mean([sampling.sample(Cluster(SMALL, Questions(uniform), s), rules, BATCH).asked for s in range(5)])
            for uniform in (0.2, 0.45, 0.7)
        ]
        assert asked[0] < asked[1] < asked[2]


def test_awaiting_all_keeps_lengths_as_they_were_sampled_and_aborting_does_not() -> None:
    roomy = Machine(SMALL.curve, replicas=3)
    lengths, uniform = Questions().draw(np.random.default_rng(99), 100_000)
    truth = lengths[~uniform].mean()

    def kept(rules: Rules) -> tuple[float, float]:
        means = [sampling.sample(Cluster(roomy, Questions(), s), rules, BATCH).kept_length for s in range(40)]
        return float(np.mean(means)), float(np.std(means) / math.sqrt(len(means)))

    for rules in (Rules(), Rules(first=3), sampling.POLICIES[OURS], Rules(drain="in order")):
        mean, error = kept(rules)
        assert abs(mean - truth) < 4 * error
        assert error < 0.025 * truth
    mean, error = kept(Rules(first=3, drain="none"))
    assert mean < 0.95 * truth


# ---- what goes in ----


@pytest.mark.parametrize(
    "questions",
    [Questions(), Questions(uniform=0.2, accuracy=0.2), Questions(uniform=0.7, mean=10_000, sigma=1.0, hardness=0)],
)
def test_questions_are_as_announced(questions: Questions) -> None:
    lengths, uniform = questions.draw(np.random.default_rng(0), 40_000)
    assert lengths.mean() == pytest.approx(questions.mean, rel=0.01)
    assert uniform.mean() == pytest.approx(questions.uniform, abs=0.01)
    assert lengths.max() == questions.cut
    assert lengths.min() >= 1


def test_hard_questions_are_longer_as_far_as_they_are_to_be() -> None:
    def gap(hardness: float) -> float:
        lengths, uniform = Questions(uniform=0.3, accuracy=0.2, hardness=hardness).draw(
            np.random.default_rng(0), 40_000
        )
        return lengths[uniform].mean() / lengths[~uniform].mean() - 1

    assert gap(0.0) == pytest.approx(0, abs=0.01)
    assert 0.02 < gap(0.5) < gap(0.9)


def test_a_curve_between_and_beyond_its_points() -> None:
    paces = Machine(((1.0, 100.0), (3.0, 100.0)), running=5).paces()
    assert paces[1:] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])


def test_the_published_curve_is_the_roofline() -> None:
    assert sampling.read_curve(CURVE) == sampling.as_curve(sampling.roofline(BATCHES))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch,seconds\n1,2\n", "needs the columns batch and tokens_per_second"),
        ("batch,tokens_per_second\n", "no rows"),
        ("batch,tokens_per_second\n1,fast\n", "row 1 holds no two numbers"),
        ("batch,tokens_per_second\n1,5\n1,6\n", "row 2: batch must rise"),
        ("batch,tokens_per_second\n1,0\n", "row 1: batch must rise and both must be positive"),
        ("batch,tokens_per_second\n1,nan\n", "row 1: batch must rise and both must be positive"),
    ],
)
def test_a_bad_curve_is_refused_by_file_and_row(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        sampling.read_curve(tmp_path / "curve.csv")
    assert "curve.csv" in str(error.value)


# ---- what comes out ----


def published() -> list[dict[str, str]]:
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_rows(wanted: Callable[[sampling.Case], bool]) -> None:
    rows = {(row["setting"], row["uniform"], row["policy"]): row for row in published()}
    for new in sampling.table(sampling.read_curve(CURVE), wanted):
        old = rows[new["setting"], new["uniform"], new["policy"]]
        assert old.keys() == new.keys()
        for name in old.keys() - {"setting", "policy"}:
            assert float(new[name]) == pytest.approx(float(old[name]), rel=1e-3, abs=2e-3), (old, name)


def test_the_table_has_every_case_once() -> None:
    known = sampling.cases(sampling.settings(sampling.read_curve(CURVE)))
    rows = [(row["setting"], row["uniform"], row["policy"], row["seeds"]) for row in published()]
    assert rows == [(*case.key, str(case.seeds)) for case in known]


def test_some_of_the_table_is_what_the_command_gives() -> None:
    check_rows(lambda case: case.setting == BASE and case.uniform in (0.2, 0.5) and case.policy in ("verl", OURS))


@pytest.mark.slow
def test_every_setting_and_every_way_of_the_table_are_what_the_command_gives() -> None:
    # Of one share of uniform groups: the other rows take more than eight more minutes of a core, and show nothing else.
    check_rows(lambda case: case.uniform == 0.5 and (case.policy in ("verl", OURS) or case.setting == BASE))


def test_the_figure_is_that_of_the_table(tmp_path: Path) -> None:
    assert sampling.fingerprint(RESULTS) in sampling.FIGURE.read_text("utf-8")
    (tmp_path / "other.csv").write_text(RESULTS.read_text().replace("0.5", "0.6"))
    sampling.draw(tmp_path / "other.csv", tmp_path / "figure.svg")
    assert sampling.fingerprint(RESULTS) not in (tmp_path / "figure.svg").read_text("utf-8")
