"""Refusals by name: values of another kind than the configuration's own, such as a word where a number stands.

Hydra takes any value for any key, and what reads it, in another process and minutes later, fails in its own words; a
text ``false`` even counts as true there.
"""

import math
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gtpo_verl.configuration.composition import compose_config

# vLLM takes text for it (`preflight.sizes.gpu_share`).
_NUMBERS_AS_TEXT = ("actor_rollout_ref.rollout.gpu_memory_utilization",)
# peft takes a word for all of them, or their names.
_WORD_OR_LIST = ("actor_rollout_ref.model.target_modules", "critic.model.target_modules")
# Groups that whoever reads them takes as left out.
_OPTIONAL_GROUPS = (
    *("algorithm.filter_groups", "algorithm.rollout_correction", "algorithm.gtpo", "algorithm.forking"),
    *("actor_rollout_ref.model.override_config", "actor_rollout_ref.actor.fsdp_config.mixed_precision"),
    *("actor_rollout_ref.rollout.mtp", "actor_rollout_ref.rollout.qat", "reward.reward_model.rollout.mtp"),
)
_WORDS = {bool: "true or false", int: "a number", float: "a number", str: "a word", list: "a list", dict: "a group"}


def check_kinds(config: DictConfig) -> None:
    """Refuses a value of another kind than the key has without any override; a number where text stands becomes text.

    The null of a value is left to whoever reads it.

    Args:
        config: changed in place, resolved or not; keys that are not there are not looked at.

    Raises:
        ValueError: naming the key.
    """
    kinds, groups, missing = _kinds()
    for key in sorted(OmegaConf.missing_keys(config) - missing):
        raise ValueError(f"{key}=???: a value is needed")
    for key, kind in kinds.items():
        try:
            value = OmegaConf.select(config, key, throw_on_missing=False)
        except OmegaConfBaseException:  # an interpolation without a value, which `resolve` names
            continue
        if value is None and key in groups and _stands_there(config, key):
            raise ValueError(f"{key}=null must be a group: its keys are read")
        listed = key in _WORD_OR_LIST and isinstance(value, ListConfig)
        if value is None or _is_a(kind, value) or listed or (key in _NUMBERS_AS_TEXT and isinstance(value, str)):
            if kind is str and isinstance(value, int | float):  # an experiment may be called 7
                OmegaConf.update(config, key, str(value))
            continue
        hint = ""
        if isinstance(value, str) and kind in (bool, int, float):
            hint = "; of an environment variable: ${oc.decode:${oc.env:NAME}}"
        shown = repr(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
        raise ValueError(f"{key}={shown[:200]} must be {_WORDS[kind]}{hint}")


def _stands_there(config: DictConfig, key: str) -> bool:
    """Whether the key is in the configuration, not only in the default one, of which a test may use a part."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    return isinstance(node, DictConfig) and name in node


@cache
def _kinds() -> tuple[dict[str, type], frozenset[str], frozenset[str]]:
    """Of every key that has a value by default, its kind; the groups that must be there; keys that are never given."""
    found: dict[str, type] = {}
    groups: set[str] = set()

    def walk(node: Any, prefix: str) -> None:
        for name, value in node.items():
            key = f"{prefix}{name}"
            if value is not None and "." not in str(name):
                found[key] = type(value)
                if isinstance(value, dict):
                    if value and key not in _OPTIONAL_GROUPS:
                        groups.add(key)
                    walk(value, f"{key}.")

    config = compose_config([])
    walk(OmegaConf.to_container(config), "")
    return found, frozenset(groups), frozenset(OmegaConf.missing_keys(config))


def _is_a(kind: type, value: Any) -> bool:
    if kind is dict:
        return isinstance(value, DictConfig)
    if kind is list:  # of one, its item alone
        return isinstance(value, ListConfig | str)
    if isinstance(value, DictConfig | ListConfig):
        return False
    if kind is bool:
        return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if isinstance(value, bool):
        return False
    if kind is str:  # a name may be a number
        return True
    return isinstance(value, int | float) and not math.isnan(value)
