"""Refusals of what a configuration names, before anything starts."""

import pytest

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.refusals import check_optimizer, check_steps


@pytest.mark.parametrize(
    ("rows", "overrides"),
    [
        (16, []),
        (16, ["trainer.total_training_steps=30"]),
        (160, ["data.train_max_samples=16", "trainer.total_training_steps=30"]),
        (160, ["data.train_max_samples=-1", "trainer.total_training_steps=300"]),
        (8, ["data.train_max_samples=16", "data.train_batch_size=8"]),
        (16, ["trainer.total_training_steps=null"]),
    ],
)
def test_data_that_reaches_the_last_step(rows: int, overrides: list[str]) -> None:
    check_steps(compose_config(overrides), rows)  # 16 prompts a step, 30 epochs


@pytest.mark.parametrize(
    ("rows", "overrides", "named"),
    [
        (4, [], r"data\.train_batch_size=16: .* has 4 prompts, not one batch"),
        (400, ["data.train_max_samples=4"], r"train_batch_size=16: .* 4 prompts \(data\.train_max_samples=4\)"),
        (4, ["trainer.total_training_steps=null"], r"not one batch"),
        (31, ["trainer.total_training_steps=31"], r"total_training_steps=31: .* after step 30\. Set .*total_epochs=31"),
        (
            16,
            ["data.train_batch_size=8", "trainer.total_epochs=1", "trainer.total_training_steps=10"],
            r"16 prompts, which are 2 steps .* after step 2\. Set trainer\.total_epochs=5 or more",
        ),
    ],
)
def test_data_that_ends_before(rows: int, overrides: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_steps(compose_config(overrides), rows)


OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (f"{OPTIM}.lr=nan", rf"{OPTIM}\.lr=nan is no finite number of at least 0"),
        (f"{OPTIM}.lr=-1e-6", rf"{OPTIM}\.lr=-1e-06 is no"),
        (f"{OPTIM}.lr=inf", rf"{OPTIM}\.lr=inf is no"),
        (f"{OPTIM}.lr=null", rf"{OPTIM}\.lr=None is no"),
        (f"{OPTIM}.clip_grad=0", rf"{OPTIM}\.clip_grad=0 is no finite number above 0"),
        (f"{OPTIM}.betas=[1.5,2]", rf"{OPTIM}: torch\.optim\.AdamW refuses: .*beta"),
        (f"{OPTIM}.weight_decay=-1", rf"{OPTIM}: torch\.optim\.AdamW refuses: .*weight_decay"),
        (f"{OPTIM}.optimizer=AdamX", rf"{OPTIM}: torch\.optim\.AdamX refuses: "),
        (f"{OPTIM}.optimizer_impl=nothing.optim", rf"{OPTIM}: nothing\.optim\.AdamW refuses: "),
        (f"{OPTIM}.override_optimizer_config={{epz: 1}}", rf"{OPTIM}: .* refuses: .*epz"),
    ],
)
def test_options_that_the_optimizer_refuses(override: str, named: str) -> None:
    check_optimizer(compose_config([]))
    with pytest.raises(ValueError, match=named):
        check_optimizer(compose_config([override]))
