"""The configuration of a run without the run: composed as `gtpo-verl train` would, and printed without secrets."""

import re
from collections.abc import Sequence

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

# Names under which people hand over credentials; `max_token_len` and `prompt_key` are none.
_SECRET = re.compile(
    r"(api_?key|secret|password|passwd|credentials?|(access|auth|hf|hub)_?token)s?$|^token$", re.IGNORECASE
)
HIDDEN = "<hidden>"


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """`configs/train.yaml` with Hydra overrides, interpolations resolved.

    Raises:
        ValueError: an override or an interpolation that does not work, in Hydra's words.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("gtpo_verl.configs", version_base=None):
            config = compose("train", list(overrides))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error)) from error
    return config


def to_yaml(config: DictConfig) -> str:
    """YAML of a resolved configuration; what looks like a credential, by its name, reads `<hidden>`."""
    return OmegaConf.to_yaml(OmegaConf.create(_without_secrets(OmegaConf.to_container(config))))


def refuse_credentials(config: DictConfig) -> None:
    """A configuration is logged by Hydra, verl and every tracker: a credential in it is a credential published.

    Raises:
        ValueError: naming the key, never its value.
    """

    def walk(node, prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            elif _is_secret(key, value):
                raise ValueError(
                    f"{prefix}{key} looks like a credential, and configurations are logged. Export it in the "
                    "environment instead: of this shell, or of `ray start` on the nodes of a cluster"
                )

    walk(OmegaConf.to_container(config), "")


def _is_secret(key: object, value: object) -> bool:
    return bool(value) and not isinstance(value, dict | list) and _SECRET.search(str(key)) is not None


def _without_secrets(node):
    if isinstance(node, dict):
        return {key: HIDDEN if _is_secret(key, value) else _without_secrets(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_secrets(value) for value in node]
    return node
