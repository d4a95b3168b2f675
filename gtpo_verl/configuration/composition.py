"""The configuration of a run without the run: composed as `gtpo-verl train` would, and printed without secrets."""

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

# Names under which people hand over credentials; `max_token_len`, `prompt_key` and `num_speculative_tokens` are none.
_SECRET = re.compile(
    r"((api|access|secret|private|account)_?key(_?id)?|secret|password|passwd|credentials?|(access|auth|hf|hub)_?token)s?$"
    r"|(^|_)token$",
    re.IGNORECASE,
)
# An address with a password in it.
_PASSWORD_IN_URL = re.compile(r"\w+://[^/\s:@]*:[^/\s@]+@")
HIDDEN = "<hidden>"


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """`configs/train.yaml` with Hydra overrides, interpolations resolved.

    Raises:
        ValueError: an override or an interpolation that does not work, in Hydra's words.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("gtpo_verl.configs", version_base=None):
            config = compose("train", [*verl_search_path(overrides), *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(in_words(error)) from error
    resolve(config)
    return config


def in_words(error: Exception) -> str:
    """What Hydra says, with the override that it cannot parse."""
    override = getattr(error, "override", None)
    return str(error) if override is None or override in str(error) else f"{override}: {error}"


def resolve(config: DictConfig) -> None:
    """Puts values in the place of all interpolations.

    Raises:
        ValueError: one has no value; names its key and what it says.
    """
    try:
        OmegaConf.resolve(config)
    except (OmegaConfBaseException, RecursionError) as error:
        where = _unresolvable(config)
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{where}: {said}" if where else str(error)) from error


def _unresolvable(node: Any, prefix: str = "") -> str | None:
    """The first key that still is an interpolation, as OmegaConf resolves them in this order."""
    names: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        if OmegaConf.is_interpolation(node, name):
            return f"{prefix}{name}={node._get_node(name)._value()}"
        if OmegaConf.is_missing(node, name):
            continue
        if OmegaConf.is_config(node[name]) and (found := _unresolvable(node[name], f"{prefix}{name}.")):
            return found
    return None


def verl_search_path(overrides: Sequence[str]) -> list[str]:
    """An override that names the folder of verl's configuration instead of its package (`configs/train.yaml`), which
    Hydra would import, and verl with it, for seconds. None where the user names a search path."""
    spec = find_spec("verl")
    if (
        spec is None
        or spec.origin is None
        or any(text.lstrip("+~").startswith("hydra.searchpath") for text in overrides)
    ):
        return []
    folder = str(Path(spec.origin).with_name("trainer") / "config")
    quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"]


def to_yaml(config: DictConfig) -> str:
    """YAML of a resolved configuration; what looks like a credential, by its name or as an address with a password,
    reads `<hidden>`."""
    shown = OmegaConf.create(OmegaConf.to_container(config))
    for key in _credentials(OmegaConf.to_container(config)):
        OmegaConf.update(shown, key, HIDDEN)
    return OmegaConf.to_yaml(shown)


def changes(before: str, after: str) -> list[str]:
    """What differs between two configurations as `to_yaml` writes them: `key: old -> new`; see `changed`."""
    return [f"{key}: {old} -> {new}" for key, (old, new) in changed(before, after).items()]


def changed(before: str, after: str) -> dict[str, tuple[Any, Any]]:
    """Old and new value of what differs between two configurations as `to_yaml` writes them, sorted by key; `nothing`
    for a key that is not there.

    Empty where `before` is no configuration, such as a file that was cut off: a remark must not end a run.
    """
    try:
        old, new = (dict(_leaves(OmegaConf.to_container(OmegaConf.create(text)))) for text in (before, after))
    except Exception:  # of YAML, OmegaConf, or because it is a list
        return {}
    absent = "nothing"
    pairs = {key: (old.get(key, absent), new.get(key, absent)) for key in sorted(old.keys() | new.keys())}
    return {key: (before, after) for key, (before, after) in pairs.items() if before != after}


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def refuse_credentials(config: DictConfig) -> None:
    """A configuration is logged by Hydra, verl and every tracker: a credential in it is a credential published.

    Raises:
        ValueError: naming the key, never its value.
    """
    for key in _credentials(OmegaConf.to_container(config)):
        raise ValueError(
            f"{key} looks like a credential, and configurations are logged. Export it in the environment instead: of "
            "this shell, or of `ray start` on the nodes of a cluster"
        )


def _credentials(node: Any, prefix: str = "") -> Iterator[str]:
    """Keys, as OmegaConf selects them, of values that are set and whose name is that of a credential, or that are an
    address with a password."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, dict | list):
            yield from _credentials(value, f"{prefix}{key}.")
        elif value and (_SECRET.search(str(key)) or (isinstance(value, str) and _PASSWORD_IN_URL.search(value))):
            yield f"{prefix}{key}"
