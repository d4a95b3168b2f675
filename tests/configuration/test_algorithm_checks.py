"""What an algorithm needs of the configuration is refused by name, and nothing else is."""

import pytest

from gtpo_verl.configuration.checks import check_config
from gtpo_verl.configuration.composition import compose_config

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def check(*overrides: str) -> list[str]:
    return check_config(compose_config(list(overrides)))


@pytest.mark.parametrize("algorithm", ["gtpo_v1", "grpo_s_v2", "dapo"])
@pytest.mark.parametrize("setting", ["temperature=0.0", "temperature=1e-09", "top_k=1", "n=1"])
def test_groups_in_which_nothing_differs(algorithm: str, setting: str) -> None:
    if (algorithm, setting) == ("dapo", "n=1"):  # verl's advantage is then the reward, not 0
        (warning,) = check(f"algorithm={algorithm}", f"{ROLLOUT}.{setting}")
        assert f"{ROLLOUT}.{setting}: a response alone has no baseline" in warning
        return
    with pytest.raises(ValueError, match=rf"rollout\.{setting}: g.* every advantage would be 0"):
        check(f"algorithm={algorithm}", f"{ROLLOUT}.{setting}")


@pytest.mark.parametrize(
    "override",
    [
        f"{ROLLOUT}.temperature=-1",
        f"{ROLLOUT}.temperature=nan",
        f"{ROLLOUT}.temperature=warm",
        f"{ROLLOUT}.top_p=0",
        f"{ROLLOUT}.top_p=1.1",
        f"{ROLLOUT}.top_k=-2",
        f"{ROLLOUT}.val_kwargs.temperature=-0.5",
        f"{ROLLOUT}.val_kwargs.top_p=-1",
        f"{ACTOR}.clip_ratio_low=-0.2",
        f"{ACTOR}.clip_ratio_high=nan",
    ],
)
def test_values_out_of_their_range(override: str) -> None:
    with pytest.raises(ValueError, match=f"{override} is no number "):
        check("algorithm=dapo", override)


@pytest.mark.parametrize(
    ("override", "said"),
    [(f"{ACTOR}.optim.lr=0", "no weight is changed"), (f"{ACTOR}.ppo_mini_batch_size=5", "fills the last mini-batch")],
)
def test_what_is_hardly_meant_is_said(override: str, said: str) -> None:
    (warning,) = check("algorithm=dapo", override)
    assert override in warning
    assert said in warning


def test_single_responses_that_are_compared_across_the_batch() -> None:
    across = ["algorithm.gtpo.uniform_groups=keep", "algorithm.gtpo.normalize.scope=batch"]
    assert check("algorithm=gtpo_v1", *across, f"{ROLLOUT}.n=1") == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=tiny", f"{ACTOR}.ppo_mini_batch_size=4", f"{ROLLOUT}.n=8"],
        ["model=tiny", "trainer.n_gpus_per_node=2"],
        ["model=smollm2"],
        ["model=smollm2_steps"],
        ["model=smollm2", "scale=smollm2_1gpu"],
        *(["model=dapo_math", f"scale={scale}"] for scale in ("7b_1x8", "32b_8x8", "32b_16x8")),
    ],
    ids=" ".join,
)
def test_fixed_micro_batches_fit_every_model_and_scale(overrides: list[str]) -> None:
    assert check("algorithm=gmpo", *overrides) == []


def test_a_fixed_micro_batch_that_does_not_divide() -> None:
    sizes = [
        f"{ACTOR}.ppo_mini_batch_size=3",
        "data.train_batch_size=15",
        f"{ROLLOUT}.n=6",
        "trainer.n_gpus_per_node=3",
    ]
    assert check("algorithm=gtpo_v1", *sizes) == []  # by tokens: any number
    with pytest.raises(ValueError, match=r"ppo_micro_batch_size_per_gpu=4: .*3 data-parallel .*3 prompts .*6 resp"):
        check("algorithm=gmpo", *sizes)
    assert check("algorithm=gmpo", *sizes, f"{ACTOR}.ppo_micro_batch_size_per_gpu=2") == []


@pytest.mark.parametrize(("algorithm", "loss"), [("gmpo", "geo_mean"), ("clip_cov", "clip_cov"), ("kl_cov", "kl_cov")])
def test_means_of_micro_batches_that_are_packed_by_tokens(algorithm: str, loss: str) -> None:
    assert check(f"algorithm={algorithm}") == []
    (warning,) = check(f"algorithm={algorithm}", f"{ACTOR}.use_dynamic_bsz=true")
    assert f"{ACTOR}.use_dynamic_bsz=True: the loss {loss} takes means within a micro-batch" in warning


def test_a_constant_that_is_none() -> None:
    assert check("algorithm=dr_grpo") == []
    (warning,) = check("algorithm=dr_grpo", f"{ACTOR}.loss_scale_factor=null")
    assert f"{ACTOR}.loss_scale_factor=null" in warning


def test_a_length_penalty_that_is_another_methods() -> None:
    grop = ["algorithm.gtpo.length_penalty.enable=true", "algorithm.gtpo.length_penalty.kind=grop"]
    assert check("algorithm=gtpo_v1", *grop) == []
    assert check("algorithm=dapo", *grop) == ["algorithm.gtpo.length_penalty.kind=grop has no effect on grpo"]


def test_weights_of_tokens_for_responses() -> None:
    assert check("algorithm=grpo_s_v1", "rollout_correction=sequence_tis") == []
    with pytest.raises(ValueError, match=r"rollout_is=token: the loss grpo_s .*rollout_correction=sequence_tis"):
        check("algorithm=grpo_s_v1", "rollout_correction=token_tis")


@pytest.mark.parametrize("algorithm", ["gtpo_v1", "dapo"])
def test_groups_are_not_filtered_by_a_reward_that_holds_a_length_penalty(algorithm: str) -> None:
    by_reward, off = "algorithm.filter_groups.metric=reward", "overlong_buffer_cfg.enable=false"
    with pytest.raises(ValueError, match=r"filter_groups\.metric=reward with .*overlong_buffer_cfg\.enable"):
        check(f"algorithm={algorithm}", by_reward)
    assert check(f"algorithm={algorithm}", by_reward, f"reward.reward_kwargs.{off}") == []
    assert check(f"algorithm={algorithm}", by_reward, "algorithm.filter_groups.enable=false") == []


def test_verls_own_methods_need_none_of_this() -> None:
    elsewhere = ["trainer.use_v1=False", "trainer.v1.trainer_mode=colocate_async"]
    assert check("algorithm=dapo", *elsewhere, "algorithm.rollout_correction.bypass_mode=True") == []


@pytest.mark.parametrize("algorithm", ["grpo", "cispo", "gtpo_v2"])
def test_forking_tokens_beside_losses_of_tokens(algorithm: str) -> None:
    assert check(f"algorithm={algorithm}", "algorithm.forking.share=0.2") == []


@pytest.mark.parametrize("algorithm", ["gspo", "gmpo", "kl_cov", "grpo_s_v1"])
def test_forking_tokens_beside_other_losses(algorithm: str) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.forking\.share=0\.2 .*loss_mode=.* vanilla, cispo, gtpo"):
        check(f"algorithm={algorithm}", "algorithm.forking.share=0.2")


@pytest.mark.parametrize(
    "override",
    ["trainer.use_v1=False", "trainer.v1.trainer_mode=colocate_async", "algorithm.rollout_correction.bypass_mode=True"],
)
@pytest.mark.parametrize(
    ("algorithm", "user"), [("dapo_forking_tokens", r"algorithm\.forking\.share=0\.2"), ("gtpo_v1", "gtpo_v1")]
)
def test_what_needs_entropies(algorithm: str, user: str, override: str) -> None:
    with pytest.raises(ValueError, match=rf"{override}.*{user}"):
        check(f"algorithm={algorithm}", override)


@pytest.mark.parametrize(
    ("override", "named"),
    [("algorithm.forking.share=2", "share must be"), ("+algorithm.forking.rho=0.2", r"unknown.*forking\.rho")],
)
def test_the_section_itself(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check("algorithm=dapo", override)
