"""Final values and differences: of which step, of which runs, and what counts as one."""

from pathlib import Path

import numpy as np
import pytest

from gtpo_verl.report.comparison import MIN_PAIRS, compare
from gtpo_verl.report.metrics_log import MetricsLog
from gtpo_verl.report.runs import Run, RunSet

STEPS = 20


def run(algorithm, seed, final, last=STEPS, planned=STEPS, reward=0.5, prompts=None):
    """A run that is validated at steps 0, 10 and 20, and ends at `final`."""
    steps = {step: {"critic/score/mean": reward} for step in range(1, last + 1)}
    for step in range(0, last + 1, 10):
        accuracy = 0.1 + (final - 0.1) * step / STEPS
        steps.setdefault(step, {})["val-core/task/acc/mean@32"] = accuracy
    by_prompt = (
        {} if prompts is None else {STEPS: {"task": {f"p{index}": value for index, value in enumerate(prompts)}}}
    )
    log = MetricsLog(Path(f"{algorithm}-seed{seed}"), dict(sorted(steps.items())), prompts=by_prompt)
    return Run(f"{algorithm}-seed{seed}", algorithm, seed, log, planned)


def runs(**groups):
    return RunSet(groups)


def only(found, **wanted):
    (one,) = [one for one in found if all(getattr(one, name) == value for name, value in wanted.items())]
    return one


def difference(compared, measure="mean@32", algorithm="gtpo_v1"):
    return only(compared.differences, measure=measure, algorithm=algorithm)


SPREAD = [0.0, 0.05, -0.04, 0.02, -0.01, 0.03, -0.06, 0.04]


def group(algorithm, gain, count=8, **more):
    noise = np.random.default_rng(3).normal(scale=0.005, size=8)
    return [run(algorithm, seed, 0.4 + SPREAD[seed] + gain + noise[seed] * (gain > 0), **more) for seed in range(count)]


def test_final_values_are_those_of_the_last_validation_and_the_last_steps():
    compared = compare(runs(dapo=group("dapo", 0)))
    final = only(compared.finals, measure="mean@32")
    assert (compared.step, compared.left_out, final.seeds) == (STEPS, [], 8)
    assert final.mean == pytest.approx(0.4 + np.mean(SPREAD))
    assert final.start == pytest.approx(0.1)
    assert final.low < final.mean < final.high
    assert only(compared.finals, measure="reward").mean == 0.5


def test_pairing_by_seed_finds_what_the_spread_of_seeds_hides():
    compared = compare(runs(dapo=group("dapo", 0), gtpo_v1=group("gtpo_v1", 0.02)))
    found = difference(compared)
    assert found.differs
    assert (found.pairs, found.prompts) == (8, 0)
    assert found.mean == pytest.approx(0.02, abs=0.005)
    assert 0 < found.low < found.mean < found.high < 0.04
    assert found.p == pytest.approx(2 / 2**8)
    assert list(found.by_seed) == list(range(8))
    assert found.mean == pytest.approx(np.mean(list(found.by_seed.values())))
    # The intervals of both algorithms' own means overlap.
    dapo, gtpo = (only(compared.finals, measure="mean@32", algorithm=name) for name in ("dapo", "gtpo_v1"))
    assert dapo.high > gtpo.low


def test_no_difference_is_found_where_there_is_none():
    noise = np.random.default_rng(4).normal(scale=0.02, size=8)
    other = [run("gtpo_v1", seed, 0.4 + SPREAD[seed] + noise[seed]) for seed in range(8)]
    assert difference(compare(runs(dapo=group("dapo", 0), gtpo_v1=other))).differs is False


def test_holm_corrects_over_the_algorithms_of_a_measure():
    others = {f"a{index}": group(f"a{index}", 0.02) for index in range(7)}
    compared = compare(runs(dapo=group("dapo", 0), **others))
    found = [one for one in compared.differences if one.measure == "mean@32"]
    assert {round(one.p_holm, 4) for one in found} == {round(7 * 2 / 2**8, 4)}
    assert [one.differs for one in found] == [False] * 7  # 8 seeds cannot show 7 at once, and say so
    assert {one.measure for one in compared.differences} == {"mean@32", "reward"}


def test_few_pairs_have_a_difference_and_no_verdict():
    compared = compare(runs(dapo=group("dapo", 0), gtpo_v1=group("gtpo_v1", 0.02, count=MIN_PAIRS - 1)))
    found = difference(compared)
    assert found.pairs == MIN_PAIRS - 1
    assert found.mean > 0
    assert (found.low, found.high, found.p, found.p_holm, found.differs) == (None,) * 5


def test_they_do_not_weaken_the_correction_of_the_others():
    compared = compare(
        runs(dapo=group("dapo", 0), gtpo_v1=group("gtpo_v1", 0.02), ablation=group("ablation", 0.02, count=4))
    )
    assert difference(compared).p_holm == difference(compared).p


def test_without_dapo_there_are_no_differences():
    assert compare(runs(gtpo_v1=group("gtpo_v1", 0))).differences == []


def test_a_run_that_ended_early_is_in_no_final_value_and_is_named():
    cut = run("gtpo_v1", 7, 0.9, last=STEPS - 1)
    compared = compare(runs(dapo=group("dapo", 0), gtpo_v1=[*group("gtpo_v1", 0, count=7), cut]))
    assert (compared.step, compared.left_out) == (STEPS, ["gtpo_v1-seed7"])
    assert only(compared.finals, measure="mean@32", algorithm="gtpo_v1").seeds == 7
    assert difference(compared).pairs == 7
    assert difference(compared).mean == pytest.approx(0)


def test_an_algorithm_of_which_no_run_ended_has_no_value():
    compared = compare(runs(dapo=group("dapo", 0), gtpo_v1=[run("gtpo_v1", 1, 0.5, last=3)]))
    final = only(compared.finals, measure="mean@32", algorithm="gtpo_v1")
    assert (final.seeds, final.mean, final.start) == (0, None, None)
    assert compared.differences == []


def test_while_all_run_the_step_is_one_that_half_have_reached():
    dapo = [run("dapo", seed, 0.4, last=last) for seed, last in enumerate((19, 12, 11))]
    gtpo = [run("gtpo_v1", seed, 0.4, last=last) for seed, last in enumerate((14, 13, 2))]
    compared = compare(runs(dapo=dapo, gtpo_v1=gtpo))
    assert (compared.step, compared.end) == (12, STEPS)
    assert compared.left_out == ["dapo-seed2", "gtpo_v1-seed2"]
    # The validation at step 10 is the last of all of them; what was logged later does not count yet.
    assert only(compared.finals, measure="mean@32", algorithm="gtpo_v1").mean == pytest.approx(0.25)


def test_first_and_last_steps_of_a_short_run_do_not_overlap():
    steps = {step: {"critic/score/mean": float(step)} for step in (1, 2, 3, 4, 5)}
    short = Run("dapo", "dapo", None, MetricsLog(Path("dapo"), steps), None)
    final = only(compare(runs(dapo=[short])).finals, measure="reward")
    assert (final.start, final.mean, final.low) == (1.5, 4.5, None)


def test_a_single_validation_is_an_end_and_no_start():
    steps = {1: {"critic/score/mean": 0.5}, 2: {"critic/score/mean": 0.6, "val-core/task/acc/mean@32": 0.4}}
    once = Run("dapo", "dapo", None, MetricsLog(Path("dapo"), steps), None)
    compared = compare(runs(dapo=[once]))
    final = only(compared.finals, measure="mean@32")
    assert (final.start, final.mean) == (None, 0.4)
    assert only(compared.finals, measure="reward").start == 0.5


def with_prompts(algorithm, gain, shift=0.0, count=8):
    generator = np.random.default_rng(5)
    hardness = generator.uniform(0.2, 0.6, size=64)
    found = []
    for seed in range(count):
        values = hardness + gain * (np.arange(64) < 8) + SPREAD[seed]
        found.append(run(algorithm, seed, values.mean() + shift, prompts=values))
    return found


def test_where_prompts_are_known_the_interval_is_for_other_prompts_too():
    """A gain on 8 of 64 prompts, the same with every seed: certain for these prompts, less so for others."""
    base, better = with_prompts("dapo", 0), with_prompts("gtpo_v1", 0.2)
    found = difference(compare(runs(dapo=base, gtpo_v1=better)))
    assert (found.prompts, found.mean) == (64, pytest.approx(0.025))
    assert found.high - found.low > 0.02
    seeds_alone = [run(one.algorithm, one.seed, one.log.steps[STEPS]["val-core/task/acc/mean@32"]) for one in better]
    assert difference(compare(runs(dapo=base, gtpo_v1=seeds_alone))).prompts == 0


def test_prompts_that_do_not_give_the_logged_mean_are_not_used():
    found = difference(compare(runs(dapo=with_prompts("dapo", 0), gtpo_v1=with_prompts("gtpo_v1", 0.2, shift=0.01))))
    assert (found.pairs, found.prompts) == (8, 0)


def test_runs_of_other_prompts_are_compared_by_seed_alone():
    better = with_prompts("gtpo_v1", 0.2)
    values = better[0].log.prompts[STEPS]["task"]
    values["elsewhere"] = values.pop("p0")
    assert difference(compare(runs(dapo=with_prompts("dapo", 0), gtpo_v1=better))).prompts == 0


def test_a_validation_of_a_run_that_was_resumed_is_not_that_of_the_others():
    dapo, gtpo = ([run(name, seed, 0.4, last=15) for seed in range(2)] for name in ("dapo", "gtpo_v1"))
    dapo[0].log.steps[13]["val-core/task/acc/mean@32"] = 0.9
    compared = compare(runs(dapo=dapo, gtpo_v1=gtpo))
    finals = [only(compared.finals, measure="mean@32", algorithm=name) for name in ("dapo", "gtpo_v1")]
    assert [(final.seeds, final.mean) for final in finals] == [(2, pytest.approx(0.25))] * 2
