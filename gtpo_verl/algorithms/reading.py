"""Reads a part of a configuration into a dataclass; whatever is wrong is refused by the key's full name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

Config = TypeVar("Config")


def section(parent: Any, name: str) -> Any:
    """The part `name` of a configuration (mapping, dataclass or None); None if it has none."""
    if isinstance(parent, Mapping):
        return parent.get(name)
    return getattr(parent, name, None)


def require(condition: bool, key: str, value: Any, expected: str) -> None:
    """Raises ValueError, naming the key, where the condition does not hold."""
    if not condition:
        raise ValueError(f"{key} must be {expected}, not {value!r}")


def require_one_of(value: Any, key: str, *choices: str) -> None:
    """Raises ValueError, naming the key, for a value that is none of the choices."""
    require(value in choices, key, value, "one of " + ", ".join(choices))


def read(cls: type[Config], config: Any, name: str) -> Config:
    """Builds the (nested) dataclass `cls` from a mapping or another dataclass.

    Args:
        name: the full key of `config`, for errors.

    Raises:
        ValueError: for an unknown key, by its full name.
    """
    values = _as_mapping(config, name)
    parts = {f.name: f.default_factory for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = [f"{name}.{key}" for key in values if key not in parts]
    if unknown:
        raise ValueError(f"unknown configuration key {', '.join(unknown)}; {name} has: {', '.join(parts)}")
    nested = {key: part for key, part in parts.items() if part is not dataclasses.MISSING}
    return cls(**{k: read(nested[k], v, f"{name}.{k}") if k in nested else v for k, v in values.items()})  # type: ignore[arg-type]


def _as_mapping(config: Any, name: str) -> dict[str, Any]:
    if isinstance(config, Mapping):
        # YAML 1.1, and so OmegaConf, reads an unquoted `on` as true, the key of `length_penalty.on` included.
        return {"on" if key is True else key: value for key, value in config.items()}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    raise ValueError(f"{name} must be a mapping or a dataclass, not {config!r}")


_TYPES = {"bool": "true or false", "float": "a finite number", "int": "a whole number", "str": "a word"}


def check_types(config: Any, name: str) -> None:
    """Raises ValueError, by its full name, for a field of a (nested) dataclass that is not of the type it declares."""
    for f in dataclasses.fields(config):
        value, key, annotation = getattr(config, f.name), f"{name}.{f.name}", str(f.type)
        if dataclasses.is_dataclass(value):
            check_types(value, key)
            continue
        kind = annotation.removesuffix(" | None")
        if not (_is_a(kind, value) or (value is None and kind != annotation)):
            raise ValueError(f"{key} must be {_TYPES.get(kind, kind)}, not {value!r}")


def _is_a(kind: str, value: Any) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "float":
        return isinstance(value, Real) and math.isfinite(value)
    return isinstance(value, {"int": Integral, "str": str}.get(kind, ()))
