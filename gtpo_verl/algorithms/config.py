"""The configuration of the algorithms: one dataclass holds every default, range and explanation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gtpo_verl.algorithms.reading import check_types, read, require, require_one_of, section

ROOT = "algorithm.gtpo"

POSITION, RESPONSE, GROUP, BATCH = "position", "response", "group", "batch"
ALL, JOINT, POLARITY = "all", "joint", "polarity"
OVERLONG, GROP = "overlong", "grop"


@dataclass(frozen=True)
class ClipConfig:
    """Bounds on the entropy-weighted reward of right tokens (eq. 11), for `gtpo_v1` and `gtpo_v2`.

    The reward becomes `clip(alpha1 + alpha2 * ratio, 1, alpha1 + alpha1 / kappa)`, and `GtpoConfig.alpha` is unused.
    """

    enable: bool | None = None
    """None: on for `gtpo_v2` alone."""
    alpha1: float = 0.9
    """Base reward; `alpha1 + alpha2 = 1`, so that a token of average entropy is worth 1."""
    alpha2: float = 0.1
    """Weight of the entropy."""
    kappa: float = 2.0
    """Sets the upper bound; > 1."""

    @property
    def upper(self) -> float:
        """The upper bound, `alpha1 + alpha1 / kappa`; at least 1."""
        return self.alpha1 + self.alpha1 / self.kappa


@dataclass(frozen=True)
class LengthPenaltyConfig:
    """The penalty on overlong responses, for `gtpo_*`."""

    enable: bool = False
    kind: str = OVERLONG
    """`overlong`: section 4.5.1, near the limit. `grop`: later versions of the paper, known here from restatements
    alone, above a length made of the group's own; it has no other keys."""
    max_length: int | None = None
    """L_2, in tokens. None: the trainer fills in `data.max_response_length`."""
    buffer: int = 4096
    """L_1, in tokens: the penalty begins at `max_length - buffer`; 0 < buffer < max_length."""
    denominator: str = "max_length"
    """`max_length` is the paper's and jumps to -1 at the end; `buffer` is DAPO's and continuous."""
    on: str = "success"
    """`success`: right responses alone (eq. 12). `all`: wrong ones too. In YAML `"on"` is best quoted."""

    @property
    def needs_max_length(self) -> bool:
        """Whether `max_length` must be known."""
        return self.enable and self.kind == OVERLONG


@dataclass(frozen=True)
class NormalizeConfig:
    """Over which rewards an advantage is standardised."""

    scope: str = GROUP
    """`group`: the responses to one prompt. `batch`: all groups of the step together."""
    over: str | None = None
    """`all`, `joint` or `polarity`, for v2 and v3. None: `all` for v2 (eqs. 14, 19), `joint` for v3."""


@dataclass(frozen=True)
class SuccessConfig:
    """What makes a response right: its raw task metric `key` is above `threshold`."""

    key: str = "acc"
    threshold: float = 0.5


@dataclass(frozen=True)
class GtpoConfig:
    """Everything under `algorithm.gtpo`.

    Raises:
        ValueError: on construction, for a value out of its range or of the wrong type, by the key's full name. The
            ranges of a part that is switched off (`clip`, `length_penalty`) are not checked.
    """

    alpha: float = 0.1
    """Weight of the entropy in eq. 2, >= 0: `gtpo_v1` and `gtpo_v2` without clip. The paper does not give it."""
    beta: float = 0.1
    """Weight of the entropy in eq. 5, >= 0: `grpo_s_v1` and `grpo_s_v2`. The paper does not give it."""
    alpha1: float = 1.0
    """Base reward of `gtpo_v3`, > 0."""
    alpha2: float = 0.1
    """Weight of the entropy in `gtpo_v3`, >= 0."""
    beta1: float = 1.0
    """Base reward of `grpo_s_v3`, > 0."""
    beta2: float = 0.1
    """Weight of the entropy in `grpo_s_v3`, >= 0."""
    clip: ClipConfig = field(default_factory=ClipConfig)
    length_penalty: LengthPenaltyConfig = field(default_factory=LengthPenaltyConfig)
    relative_to: str = POSITION
    """What a token's entropy is compared with (section 5), for `gtpo_*`: the same `position` in the group's other right
    (or wrong) responses, its own `response`, or all tokens of the group's right (or wrong) responses (`group`)."""
    sequence_entropy: str = "arithmetic"
    """A response's entropy as the `arithmetic` or `geometric` mean of its tokens', for `grpo_s_*`."""
    normalize: NormalizeConfig = field(default_factory=NormalizeConfig)
    uniform_groups: str = "zero"
    """Groups all right or all wrong: `zero` gives them no advantage, `keep` shapes them like any other."""
    sign_guard: bool = False
    """Cut off negative advantages of right tokens and positive ones of wrong tokens, last of all."""
    success: SuccessConfig = field(default_factory=SuccessConfig)
    entropy_floor: float = 1e-6
    """In nats, > 0: the least entropy that an inverse or a logarithm sees."""
    epsilon: float = 1e-6
    """Added to the standard deviation, > 0."""

    def __post_init__(self) -> None:
        check_types(self, ROOT)
        for key in ("alpha", "beta", "alpha2", "beta2"):
            _require(getattr(self, key) >= 0, key, getattr(self, key), "at least 0")
        for key in ("alpha1", "beta1", "entropy_floor", "epsilon"):
            _require(getattr(self, key) > 0, key, getattr(self, key), "above 0")
        _require_one_of(self.relative_to, "relative_to", POSITION, RESPONSE, GROUP)
        _require_one_of(self.sequence_entropy, "sequence_entropy", "arithmetic", "geometric")
        _require_one_of(self.uniform_groups, "uniform_groups", "zero", "keep")
        _require_one_of(self.normalize.scope, "normalize.scope", GROUP, BATCH)
        if self.normalize.over is not None:
            _require_one_of(self.normalize.over, "normalize.over", ALL, JOINT, POLARITY)
        _require(bool(self.success.key), "success.key", self.success.key, "the name of a metric")
        if self.clip.enable:
            _check_clip(self.clip)
        if self.length_penalty.enable:
            _check_length_penalty(self.length_penalty)

    @classmethod
    def from_any(cls, config: Any) -> GtpoConfig:
        """Reads `algorithm.gtpo`: a mapping (dict, DictConfig), a dataclass, or None for the defaults.

        Raises:
            ValueError: for an unknown key, or a value out of its range or of the wrong type, by the key's full name.
        """
        return config if isinstance(config, cls) else read(cls, config if config is not None else {}, ROOT)


def gtpo_section(algorithm: Any) -> Any:
    """The `gtpo` part of verl's `algorithm` configuration (mapping, dataclass or None); None if it has none."""
    return section(algorithm, "gtpo")


def _check_clip(clip: ClipConfig) -> None:
    total = clip.alpha1 + clip.alpha2
    _require(abs(total - 1) <= 1e-6, "clip.alpha1 + clip.alpha2", total, "1")
    _require(clip.kappa > 1, "clip.kappa", clip.kappa, "above 1")
    _require(
        clip.upper >= 1 - 1e-9, "clip.alpha1 + clip.alpha1 / clip.kappa, the upper bound,", clip.upper, "at least 1"
    )


def _check_length_penalty(penalty: LengthPenaltyConfig) -> None:
    key = "length_penalty"
    _require_one_of(penalty.kind, f"{key}.kind", OVERLONG, GROP)
    if penalty.kind == GROP:
        return
    _require(penalty.buffer > 0, f"{key}.buffer", penalty.buffer, "above 0")
    if penalty.max_length is not None:
        limit = f"below {ROOT}.{key}.max_length = {penalty.max_length}"
        _require(penalty.buffer < penalty.max_length, f"{key}.buffer", penalty.buffer, limit)
    _require_one_of(penalty.denominator, f"{key}.denominator", "max_length", "buffer")
    _require_one_of(penalty.on, f"{key}.on", "success", "all")


def _require(condition: bool, key: str, value: Any, expected: str) -> None:
    require(condition, f"{ROOT}.{key}", value, expected)


def _require_one_of(value: Any, key: str, *choices: str) -> None:
    require_one_of(value, f"{ROOT}.{key}", *choices)
