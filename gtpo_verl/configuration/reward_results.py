"""What a reward function must give: finite numbers where something is decided by them."""

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, gtpo_section


def deciding_metrics(config: DictConfig) -> dict[str, list[str]]:
    """Metrics of the reward that decide which responses are right and which groups are kept: the keys that ask for
    each."""
    wanted: dict[str, list[str]] = {}
    if config.algorithm.adv_estimator in ESTIMATORS:
        success = GtpoConfig.from_any(gtpo_section(config.algorithm)).success
        wanted.setdefault(success.key, []).append("algorithm.gtpo.success.key")
    filter_groups = config.algorithm.get("filter_groups")
    if filter_groups is not None and filter_groups.enable and filter_groups.metric not in ("reward", "score"):
        wanted.setdefault(filter_groups.metric, []).append("algorithm.filter_groups.metric")
    return wanted


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number that means something; a text is none, whatever it spells."""
    if isinstance(value, str | bytes):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def check_result(score: Any, metrics: Mapping[str, Any], wanted: Mapping[str, list[str]]) -> None:
    """Refuses what a reward gave for a response.

    Args:
        score: the reward.
        metrics: what it gave beside it.
        wanted: `deciding_metrics`; those that are not in `metrics` are not looked at.

    Raises:
        ValueError: naming the value, and the keys that ask for it.
    """
    if not is_finite_number(score):
        raise ValueError(f"the reward of a response must be a finite number, not {score!r}")
    for metric, keys in wanted.items():
        if metric in metrics and not is_finite_number(metrics[metric]):
            raise ValueError(
                f"`{metric}` of a response, which {' and '.join(keys)} asks for, must be a finite number, "
                f"not {metrics[metric]!r}"
            )
