"""Which measures a report has, and how they are read."""

from pathlib import Path

import pytest

from gtpo_verl.report import measures
from gtpo_verl.report.metrics_log import MetricsLog


def log(steps):
    return MetricsLog(Path("metrics.jsonl"), steps)


def validated(ks, source="task", step=0, mean=0.5):
    k_max = max(ks)
    values = {f"val-{'core' if k == k_max else 'aux'}/{source}/acc/best@{k}/mean": k / 10 for k in ks}
    return {step: {**values, f"val-core/{source}/acc/mean@{k_max}": mean, f"val-core/{source}/acc/maj@{k_max}/mean": 0}}


def keys(found):
    return [measure.key for measure in found]


def test_the_papers_four_figures_and_two_more():
    assert keys(measures.curves([log(validated([2, 4, 8, 16, 32]))])) == [
        "entropy",
        "length",
        "reward",
        "mean@32",
        "best@32",
        "best@16",
    ]


def test_k_are_those_that_all_validated_runs_have():
    logs = [log(validated([2, 4, 8])), log(validated([2, 4])), log({1: {"actor/entropy": 1.0}})]
    assert keys(measures.curves(logs)[3:]) == ["validation", "best@4", "best@2"]
    assert keys(measures.curves([logs[0], logs[2]])[3:]) == ["mean@8", "best@8", "best@4"]


def test_accuracies_are_means_over_data_sources():
    both = {0: {**validated([8], "rg/a", mean=0.2)[0], **validated([8], "rg/b", mean=0.4)[0]}}
    one = log({**both, **validated([8], "rg/a", step=5, mean=1.0)})
    mean, of_a, of_b = [found for found in measures.final_measures([one]) if found.key.startswith("mean@")]
    assert mean.series(one) == {0: pytest.approx(0.3)}
    assert (of_a.key, of_a.series(one)) == ("mean@8, rg/a", {0: 0.2, 5: 1.0})
    assert (of_b.key, of_b.series(one)) == ("mean@8, rg/b", {0: 0.4})
    assert mean.sources == ("rg/a", "rg/b")


def test_accuracies_are_means_over_the_sources_that_are_named():
    values = {"rg/a": 0.2, "rg/b": 0.4, "rg/c": 0.9}
    both = {
        0: {
            name: value
            for source, mean in values.items()
            for name, value in validated([8, 4], source, mean=mean)[0].items()
        }
    }
    one = log(both)
    found = measures.final_measures([one], ["rg/a", "rg/b"])
    assert keys(found)[:7] == ["mean@8", "best@8", "best@4", "maj@8", "mean@8, rg/a", "mean@8, rg/b", "mean@8, rg/c"]
    assert found[0].series(one) == {0: pytest.approx(0.3)}
    assert {shown.sources for shown in found[:4]} == {("rg/a", "rg/b")}
    assert [shown.sources for shown in measures.curves([one], ["rg/b"])[3:]] == [("rg/b",)] * 3
    assert measures.curves([one], ["rg/b"])[3].series(one) == {0: 0.4}
    assert measures.validated_sources([one, log({})]) == sorted(values)


def test_a_k_that_a_named_source_lacks_is_none():
    one = log({0: {**validated([8, 4], "rg/a")[0], **validated([4], "rg/b")[0]}})
    assert keys(measures.curves([one], ["rg/a", "rg/b"])[3:]) == ["validation", "best@4"]


def test_final_measures_have_the_majority_and_what_training_logs():
    found = measures.final_measures([log(validated([2, 4]))])
    assert keys(found) == ["mean@4", "best@4", "best@2", "maj@4", "reward", "entropy", "length"]


def test_other_numbers_of_a_validation_are_no_measure():
    names = [
        "val-core/t/acc/best@8/std",
        "val-core/t/acc/worst@8/mean",
        "val-aux/t/score/mean@8",
        "val-core/t/acc/std@8",
    ]
    assert keys(measures.final_measures([log({0: dict.fromkeys(names, 1.0)})])) == ["reward", "entropy", "length"]


def test_reward_falls_back_to_rewards():
    assert measures.reward(log({1: {"critic/rewards/mean": 0.25}})) == {1: 0.25}
    assert measures.reward(log({1: {"critic/rewards/mean": 0.25, "critic/score/mean": 0.5}})) == {1: 0.5}


def test_diagnostics_are_those_that_a_run_logs():
    dapo = log({1: {"actor/pg_clipfrac": 0.0, "timing_s/step": 2.0}})
    assert keys(measures.diagnostics([dapo])) == ["clipped", "step_time"]
    assert measures.diagnostics([log({1: {"actor/entropy": 1.0}})]) == []


def test_diagnostics_read_what_the_estimators_and_losses_log():
    """The names are those of our own code: a renamed metric must not become an empty panel."""
    import torch

    from gtpo_verl.algorithms import GtpoConfig, compute_advantages

    result = compute_advantages(
        "gtpo_v2",
        entropy=torch.tensor([0.5, 0.4, 0.3, 0.2]),
        offsets=torch.tensor([0, 2, 4]),
        group=torch.tensor([0, 0]),
        success=torch.tensor([True, False]),
        config=GtpoConfig(),
    )
    logged = log({1: {**result.metrics, "actor/pg_clipfrac": 0.1, "timing_s/step": 1.0}})
    assert measures.diagnostics([logged]) == list(measures.DIAGNOSTICS)
