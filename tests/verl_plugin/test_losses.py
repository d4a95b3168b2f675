"""The losses through verl's registry: golden values, verl's conventions, its own losses where they are the same."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from gtpo_verl.algorithms import LOSSES
from gtpo_verl.verl_plugin.losses import register_losses

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())["losses"]


@pytest.fixture(autouse=True)
def _registered():
    register_losses()


def actor_config(global_batch_info=None, **kwargs):
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **kwargs)
    config.global_batch_info.update(global_batch_info or {})
    return config


def mini_batch(seed):
    """Ratios on both sides of the clip range; the advantage is the same for all tokens of a response."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(8, 9, generator=generator) * 2
    log_prob = old + 0.4 * torch.randn(8, 9, generator=generator)
    advantages = torch.randn(8, 1, generator=generator).expand(8, 9)
    mask = torch.arange(9) < torch.randint(1, 10, (8,), generator=generator)[:, None]
    return old, log_prob, advantages, mask


def value_and_gradient(name, old, log_prob, advantages, mask, config, **kwargs):
    log_prob = log_prob.clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask,
        config=config,
        **{"loss_agg_mode": "token-mean", **kwargs},
    )
    loss.backward()
    return loss.detach(), log_prob.grad, metrics


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("case", GOLDEN)
@pytest.mark.parametrize("mask_dtype", [torch.int64, torch.bool])
def test_golden_losses(case, name, mask_dtype):
    mask = torch.tensor(case["mask"])
    tensors = [
        torch.where(mask.bool(), torch.tensor(case[key]), float("nan"))
        for key in (
            "old_log_prob",
            "log_prob",
            "token_advantages" if name == "gtpo" else "sequence_advantages",
        )
    ]
    config = actor_config(clip_ratio_low=case["clip_ratio_low"], clip_ratio_high=case["clip_ratio_high"])
    loss, gradient, _ = value_and_gradient(name, *tensors, mask.to(mask_dtype), config)
    assert loss.item() == pytest.approx(case[name], abs=1e-5)
    assert torch.isfinite(gradient).all()


def test_registering_twice_changes_nothing():
    before = {name: get_policy_loss_fn(name) for name in LOSSES}
    register_losses()
    assert {name: get_policy_loss_fn(name) for name in LOSSES} == before


INFOS = [
    {},
    {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None, "loss_scale_factor": None},
    {"dp_size": 4, "batch_num_tokens": 200, "global_batch_size": 32, "loss_scale_factor": None},
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("info", INFOS, ids=["empty", "nulls", "filled"])
def test_gtpo_is_verls_vanilla_without_its_dual_clip(info, seed):
    config = actor_config(info, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1e6)
    ours = value_and_gradient("gtpo", *mini_batch(seed), config)
    verls = value_and_gradient("vanilla", *mini_batch(seed), config)
    torch.testing.assert_close(ours[:2], verls[:2])
    for key in ("actor/pg_clipfrac", "actor/ppo_kl"):
        assert ours[2][key] == pytest.approx(verls[2][key], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("info", INFOS, ids=["empty", "nulls", "filled"])
def test_grpo_s_geometric_is_verls_gspo(info, seed):
    """verl writes the same gradient with a stopped one per token, and means over tokens, then responses."""
    config = actor_config(info, clip_ratio_low=0.2, clip_ratio_high=0.28)
    ours = value_and_gradient("grpo_s_geometric", *mini_batch(seed), config)
    verls = value_and_gradient("gspo", *mini_batch(seed), config, loss_agg_mode="seq-mean-token-mean")
    torch.testing.assert_close(ours[:2], verls[:2], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_agg_mode_is_not_read(name):
    config = actor_config(clip_ratio_low=0.2, clip_ratio_high=0.28)
    losses = [
        value_and_gradient(name, *mini_batch(0), config, loss_agg_mode=mode)[0]
        for mode in ("token-mean", "seq-mean-token-sum")
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "make",
    [
        lambda c: actor_config(**c),
        OmegaConf.create,
        dict,
        lambda c: SimpleNamespace(**c),
        lambda c: {"clip_ratio": 9.0, "global_batch_info": {}, **c},
        lambda c: {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": c["clip_ratio_high"]},
    ],
    ids=["ActorConfig", "DictConfig", "dict", "namespace", "clip_ratio unused", "clip_ratio as fallback"],
)
def test_forms_of_the_configuration(name, make):
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    expected = value_and_gradient(name, *mini_batch(1), actor_config(**clip))
    loss, gradient, _ = value_and_gradient(name, *mini_batch(1), make(clip))
    assert torch.equal(loss, expected[0])
    assert torch.equal(gradient, expected[1])


@pytest.mark.parametrize("name", LOSSES)
def test_no_configuration(name):
    with pytest.raises(ValueError, match=r"clip_ratio_low and clip_ratio_high"):
        value_and_gradient(name, *mini_batch(0), None)


@pytest.mark.parametrize("name", LOSSES)
def test_rollout_weights(name):
    old, log_prob, advantages, mask = mini_batch(2)
    config = actor_config(clip_ratio_low=0.2, clip_ratio_high=0.28)
    weights = torch.rand(8, 1).expand(8, 9)
    weighted = value_and_gradient(name, old, log_prob, advantages, mask, config, rollout_is_weights=weights)
    expected = value_and_gradient(name, old, log_prob, advantages * weights, mask, config)
    torch.testing.assert_close(weighted[:2], expected[:2])


def test_losses_inside_verls_ppo_loss():
    """verl's caller fills `global_batch_info`, hands over a bool mask and turns each metric into its own kind."""
    from tensordict import TensorDict
    from verl.utils.tensordict_utils import assign_non_tensor
    from verl.workers.utils.losses import ppo_loss

    lengths, prompt = torch.tensor([3, 5]), 2
    total = lengths + prompt

    def nested(values):
        return torch.nested.nested_tensor(list(values), layout=torch.jagged)

    log_probs = [torch.full((int(n),), -1.0) for n in total]
    data = TensorDict(
        {
            "prompts": nested(torch.zeros(prompt, dtype=torch.int64) for _ in lengths),
            "responses": nested(torch.zeros(int(n), dtype=torch.int64) for n in lengths),
            "response_mask": nested(torch.ones(int(n), dtype=torch.int64) for n in lengths),
            "old_log_probs": nested(torch.full((int(n),), -1.0) for n in lengths),
            "advantages": nested(torch.full((int(n),), a) for n, a in zip(lengths, (1.0, -0.5), strict=True)),
            "input_ids": nested(torch.zeros(int(n), dtype=torch.int64) for n in total),
            "attention_mask": nested(torch.ones(int(n), dtype=torch.int64) for n in total),
            "loss_mask": nested(torch.ones(int(n), dtype=torch.int64) for n in total),
        },
        batch_size=[2],
    )
    assign_non_tensor(data, dp_size=2, batch_num_tokens=16, global_batch_size=4, max_response_len=5)
    for name, expected in (("gtpo", -(3 - 2.5) / 16 * 2), ("grpo_s", -(1 - 0.5) / 4 * 2)):
        config = actor_config(clip_ratio_low=0.2, clip_ratio_high=0.28)
        object.__setattr__(config.policy_loss, "loss_mode", name)
        loss, metrics = ppo_loss(config, {"log_probs": nested(log_probs)}, data)
        assert loss.item() == pytest.approx(expected)
        assert metrics["actor/ratio_mean"].aggregate() == pytest.approx(1.0)
