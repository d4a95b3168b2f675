"""What a set of runs consists of, as benchmarks/manifests say it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# Of a text one would take the letters.
_LISTS = {"seeds", "prepare", "overrides", "sources", "alike"}


@dataclass(frozen=True)
class Scale:
    """How a set is spread over a machine: `side_by_side` runs on each of `cards`; 0 cards: on the processors.

    Attributes:
        seconds_apart: between two starts on a card. Two vLLMs that measure its memory at the same time take each
            other's for their own; with `kv_cache_memory_bytes` they do not measure.
    """

    cards: int
    side_by_side: int
    overrides: list[str] = field(default_factory=list)
    seconds_apart: float = 30.0


@dataclass(frozen=True)
class Planned:
    """One run of a set: its name with the seed, and the arguments of `gtpo-verl train`."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """A set of runs.

    Attributes:
        set: its name, and that of its folder under `runs`.
        steps: training steps of every run.
        seeds: of every run that names none of its own.
        prepare: commands of gtpo-verl to be run first, for models and data.
        overrides: Hydra's, of every run.
        runs: by name: `algorithm`, a preset, where that is not the name; `seeds`; more `overrides`.
        revision: of the repository; the package and its presets must be those of this commit. null: any.
        alike: hashes of other code (`source` in `runs.json`) that gives the same numbers; its runs are added to.
        versions: of packages, which must be installed.
        sources: data sources that the report's validation accuracies are means over; none: all.
        scales: by name.
    """

    set: str
    steps: int
    seeds: list[int]
    overrides: list[str]
    runs: dict[str, dict[str, Any]]
    scales: dict[str, Scale]
    prepare: list[str] = field(default_factory=list)
    revision: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Raises ValueError naming the file and the key."""
        try:
            given = yaml.safe_load(path.read_text("utf-8"))
            scales = {str(name): Scale(**scale) for name, scale in given.pop("scales").items()}
            manifest = cls(**given, scales=scales)
            for name, run in manifest.runs.items():
                if unknown := set(run) - {"algorithm", "seeds", "overrides"}:
                    raise ValueError(f"runs.{name}: unknown {', '.join(sorted(unknown))}")
            parts = {"": given, **{f"runs.{name}.": run for name, run in manifest.runs.items()}}
            parts |= {f"scales.{name}.": {"overrides": scale.overrides} for name, scale in scales.items()}
            for part, keys in parts.items():
                for key in _LISTS & keys.keys():
                    if not isinstance(keys[key], list):
                        raise ValueError(f"{part}{key}: no list")
        except (OSError, TypeError, ValueError, KeyError, AttributeError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error
        return manifest

    def planned(
        self, scale: Scale, seeds: Sequence[int] | None = None, runs: Sequence[str] | None = None
    ) -> Iterator[Planned]:
        """All runs of a seed before those of the next, so that whatever is done can be compared; only `seeds` and
        `runs`, where they are given.

        Raises:
            ValueError: a run has no such name, or none of these runs such a seed.
        """
        if unknown := [name for name in runs or () if name not in self.runs]:
            raise ValueError(f"{self.set} has no run {unknown[0]}; it has {', '.join(self.runs)}")
        chosen = {name: run for name, run in self.runs.items() if runs is None or name in runs}
        known = sorted({seed for run in chosen.values() for seed in run.get("seeds", self.seeds)})
        if absent := [seed for seed in seeds or () if seed not in known]:
            of = "" if runs is None else f" of {', '.join(chosen)}"
            raise ValueError(f"{self.set} has no seed {absent[0]}{of}; it has {', '.join(map(str, known))}")
        for seed in dict.fromkeys(seeds or known):
            for name, run in chosen.items():
                if seed in run.get("seeds", self.seeds):
                    overrides = [f"algorithm={run.get('algorithm', name)}", *self.overrides, *scale.overrides]
                    overrides += run.get("overrides", [])
                    overrides += [f"trainer.project_name={self.set}", f"trainer.experiment_name={name}"]
                    overrides += [f"data.seed={seed}", f"trainer.total_training_steps={self.steps}"]
                    yield Planned(f"{name}-seed{seed}", tuple(overrides))
