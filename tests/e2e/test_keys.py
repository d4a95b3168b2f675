"""No key of our configuration is one that nobody reads: such a key looks like a setting and does nothing."""

import re
from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from training_run import ROOT, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = ROOT / "configs"

# TransferQueue copies this group and reads its keys from the copy.
COPIED = "transfer_queue."
# Given to a class of ours that reads every key and refuses the others by name (GtpoConfig, ForkingConfig).
READ_WHOLE = ("algorithm.gtpo", "algorithm.forking")


def leaves(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in node:
        name = f"{prefix}{key}"
        child = node._get_node(key)
        if isinstance(child, DictConfig) and len(child) > 0:
            yield from leaves(child, f"{name}.")
        else:
            yield name


def keys_that_we_set() -> set[str]:
    ours = set()
    for path in CONFIGS.rglob("*.yaml"):
        config = OmegaConf.load(path)
        for name in ("hydra", "defaults"):
            config.pop(name, None)
        ours |= set(leaves(config))
    return ours


def is_read(key: str, config: DictConfig, recorded: set[str]) -> bool:
    """By its name, with a subtree, as a field of a dataclass, or through another key that stands for it."""
    return is_read_itself(key, config, recorded) or any(
        is_read_itself(other, config, recorded) for other in references(config).get(key, [])
    )


def references(config: DictConfig) -> dict[str, list[str]]:
    """Of each key, those whose value is an interpolation of it: `${a.b}`, `${oc.select:a.b,1}`."""
    found: dict[str, list[str]] = {}
    for other in leaves(config):
        parent, _, last = other.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        raw = node._get_node(last)._value()
        if isinstance(raw, str):
            for key in re.findall(r"\$\{(?:oc\.select:)?([\w.]+)", raw):
                found.setdefault(key, []).append(other)
    return found


def is_read_itself(key: str, config: DictConfig, recorded: set[str]) -> bool:
    parts = key.split(".")
    if key.startswith(COPIED):
        return key.removeprefix(COPIED) in recorded
    if key in recorded or any(key.startswith(f"{whole}.") and whole in recorded for whole in READ_WHOLE):
        return True
    for end in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:end])
        if f"{parent}.*" in recorded:
            return True
        node = OmegaConf.select(config, parent)
        target = node.get("_target_") if isinstance(node, DictConfig) else None
        if target is not None:
            # A subclass's fields are read as its own; what lies below a field goes with it.
            return f"{target.rpartition('.')[2]}:{parts[end]}" in recorded
    return False


def test_every_key_is_read(presets_in_turn: Run) -> None:
    records = presets_in_turn.folder / "keys"
    recorded = {line for path in records.iterdir() for line in path.read_text().splitlines()}
    with initialize_config_module("gtpo_verl.configs", version_base=None):
        config = compose("train")
    # No exceptions: verl 0.9.1 reads what is for GPUs (offloading, graphs, memory) on CPU as well.
    assert sorted(key for key in keys_that_we_set() if not is_read(key, config, recorded)) == []
    assert "trainer.n_gpus_per_node" in recorded
    # The control: verl 0.9.1 has this key, and reads it nowhere but for its critic.
    assert not is_read("actor_rollout_ref.nccl_timeout", config, recorded)
