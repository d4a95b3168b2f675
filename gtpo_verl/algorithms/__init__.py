"""GTPO and GRPO-S (arXiv 2508.04349) in pure PyTorch, for any trainer.

`compute_advantages` is the core, for flat tensors without padding; `compute_padded_advantages` wraps it for padded
tensors. `shaped_rewards` are what it is made from, `group_advantages` is DAPO's, to compare with.
`gtpo_loss`, `grpo_s_loss` and `grpo_s_geometric_loss` are the losses, `GtpoConfig` holds every option.
`forking_tokens` is of another paper (arXiv 2506.01939), to compare with or to combine.
"""

from gtpo_verl.algorithms.advantages import (
    AdvantageResult,
    ShapedRewards,
    compute_advantages,
    group_advantages,
    shaped_rewards,
)
from gtpo_verl.algorithms.checks import needs_groups, refuse_kl_in_reward, unfitting_pair, unused_keys
from gtpo_verl.algorithms.config import (
    ClipConfig,
    GtpoConfig,
    LengthPenaltyConfig,
    NormalizeConfig,
    SuccessConfig,
    gtpo_section,
)
from gtpo_verl.algorithms.estimators import ESTIMATORS
from gtpo_verl.algorithms.forking import ForkingConfig, forking_tokens
from gtpo_verl.algorithms.losses import LOSSES, GlobalBatch, grpo_s_geometric_loss, grpo_s_loss, gtpo_loss
from gtpo_verl.algorithms.padded import compute_padded_advantages

__all__ = [
    "ESTIMATORS",
    "LOSSES",
    "AdvantageResult",
    "ClipConfig",
    "ForkingConfig",
    "GlobalBatch",
    "GtpoConfig",
    "LengthPenaltyConfig",
    "NormalizeConfig",
    "ShapedRewards",
    "SuccessConfig",
    "compute_advantages",
    "compute_padded_advantages",
    "forking_tokens",
    "group_advantages",
    "grpo_s_geometric_loss",
    "grpo_s_loss",
    "gtpo_loss",
    "gtpo_section",
    "needs_groups",
    "refuse_kl_in_reward",
    "shaped_rewards",
    "unfitting_pair",
    "unused_keys",
]
