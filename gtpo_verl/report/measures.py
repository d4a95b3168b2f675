"""What a report shows: the name of each measure, its unit, and how it is read from a run's metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gtpo_verl.report.metrics_log import MetricsLog

Series = Callable[[MetricsLog], Mapping[int, float]]


@dataclass(frozen=True)
class Measure:
    """One measure of a run.

    Attributes:
        key: short name, for files: ``entropy``, ``best@32``.
        title: for readers.
        axis: what is on the y axis, with its unit.
        series: values by step; empty where a run did not log it.
        validation: measured at few steps, on other prompts than those trained on.
        sources: of a validation measure, the data sources it is the mean over.
    """

    key: str
    title: str
    axis: str
    series: Series
    validation: bool = False
    sources: tuple[str, ...] = ()


def logged(name: str) -> Series:
    """Return a reader of one metric by the name it was logged under."""
    return lambda log: log.series(name)


def reward(log: MetricsLog) -> dict[int, float]:
    """Return the mean reward of the trained responses by step; what dynamic sampling dropped is not among them."""
    return log.series("critic/score/mean") or log.series("critic/rewards/mean")


ENTROPY = Measure("entropy", "Policy entropy", "entropy (nats per token)", logged("actor/entropy"))
LENGTH = Measure("length", "Response length", "mean length (tokens)", logged("response_length/mean"))
REWARD = Measure("reward", "Training reward", "mean reward of the batch", reward)
STEP_TIME = Measure("step_time", "Time of a step", "seconds", logged("timing_s/step"))

DIAGNOSTICS = (
    Measure(
        "right_negative",
        "Right tokens with a negative advantage",
        "share of right tokens\n(before sign_guard)",
        logged("gtpo/right_tokens_negative_frac"),
    ),
    Measure(
        "wrong_positive",
        "Wrong tokens with a positive advantage",
        "share of wrong tokens\n(before sign_guard)",
        logged("gtpo/wrong_tokens_positive_frac"),
    ),
    Measure("clipped", "Ratios clipped in the loss", "share of tokens or responses", logged("actor/pg_clipfrac")),
    Measure("clip_low", "Rewards cut to eq. 11's lower bound", "share of right tokens", logged("gtpo/clip_low_frac")),
    Measure("clip_high", "Rewards cut to its upper bound", "share of right tokens", logged("gtpo/clip_high_frac")),
    Measure("entropy_right", "Entropy of right tokens", "entropy (nats per token)", logged("gtpo/entropy_right_mean")),
    Measure("entropy_wrong", "Entropy of wrong tokens", "entropy (nats per token)", logged("gtpo/entropy_wrong_mean")),
    STEP_TIME,
)

# verl files the highest k of a run under val-core and the others under val-aux (verl/trainer/ppo/v1/trainer_base.py,
# `_val_metrics_update`).
_VALIDATION = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/acc/(?P<statistic>mean|best|maj)@(?P<k>\d+)(?:/mean)?$")
_STATISTICS = {
    "mean": ("mean of {k}", "mean@{k}"),
    "best": ("best of {k}", "best@{k}"),
    "maj": ("majority of {k}", "maj@{k}"),
}


def curves(logs: Sequence[MetricsLog], sources: Sequence[str] = ()) -> list[Measure]:
    """Return the measures of the main figure: the paper's four, training reward, and mean accuracy.

    The k of best@k are the highest two that all validated logs have, 32 and 16 in the paper; where none was validated,
    the panels stay, empty. Accuracies are means over `sources`, as of `validation`.
    """
    best = validation(logs, "best", sources)[:2]
    mean = validation(logs, "mean", sources)[:1]
    none = Measure("validation", "Validation accuracy", "share of problems", lambda log: {}, validation=True)
    return [ENTROPY, LENGTH, REWARD, *(mean or [none]), *best]


def diagnostics(logs: Sequence[MetricsLog]) -> list[Measure]:
    """Return the diagnostics that at least one log has: verl's own estimators log nothing about advantages."""
    return [measure for measure in DIAGNOSTICS if any(measure.series(log) for log in logs)]


def final_measures(logs: Sequence[MetricsLog], sources: Sequence[str] = ()) -> list[Measure]:
    """Return the measures whose final values are compared: accuracies over `sources`, as of `validation`, then those of
    each data source."""
    wanted = (("mean", 1), ("best", 2), ("maj", 1))
    found = [one for statistic, many in wanted for one in validation(logs, statistic, sources)[:many]]
    each = next((one.sources for one in validation(logs, "mean")), ())
    if len(each) > 1:
        found += [one for source in each for one in validation(logs, "mean", [source], named=True)[:1]]
    return [*found, REWARD, ENTROPY, LENGTH]


def validated_sources(logs: Sequence[MetricsLog]) -> list[str]:
    """Return all data sources of which any log has an accuracy."""
    return sorted({source for log in logs for source, _ in _validation_names(log, "mean")})


def validation(
    logs: Sequence[MetricsLog], statistic: str, sources: Sequence[str] = (), named: bool = False
) -> list[Measure]:
    """Return a validation accuracy for each k that all validated logs share, highest k first.

    Args:
        logs: those without any validation have no say.
        statistic: ``mean``, ``best`` or ``maj`` of k responses.
        sources: data sources that it is the mean over; none for all that the logs share.
        named: key and title name the sources.
    """
    names = [found for log in logs if (found := _validation_names(log, statistic))]
    common = set[tuple[str, int]].intersection(*(set(found) for found in names)) if names else set()
    by_k: dict[int, tuple[str, ...]] = {}
    for source, k in sorted(common):
        if not sources or source in sources:
            by_k[k] = (*by_k.get(k, ()), source)
    whole = [k for k in by_k if not sources or len(by_k[k]) == len(set(sources))]
    only = ", ".join(sources) if named else None
    return [_accuracy(statistic, k, by_k[k], only) for k in sorted(whole, reverse=True)]


def _accuracy(statistic: str, k: int, sources: tuple[str, ...], only: str | None) -> Measure:
    def series(log: MetricsLog) -> dict[int, float]:
        names = _validation_names(log, statistic)
        per_source = [log.series(names[source, k]) if (source, k) in names else {} for source in sources]
        steps = set(per_source[0]).intersection(*per_source[1:])
        return {step: sum(one[step] for one in per_source) / len(per_source) for step in sorted(steps)}

    words, key = (text.format(k=k) for text in _STATISTICS[statistic])
    where = f", {only}" if only else ""
    title = f"Validation accuracy, {words}{where}"
    return Measure(f"{key}{where}", title, "share of problems", series, validation=True, sources=sources)


def _validation_names(log: MetricsLog, statistic: str) -> dict[tuple[str, int], str]:
    """The metrics of one statistic that a log has, by data source and k."""
    matches = filter(None, map(_VALIDATION.match, log.names))
    return {(match["source"], int(match["k"])): match.string for match in matches if match["statistic"] == statistic}
