"""What a resumed run says of its changed keys is what holds."""

import pytest
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.restored import refuse_other_optimizer, remarks, without_effect

OPTIM = "actor_rollout_ref.actor.optim"


def config(fused: bool = True, contents: list[str] | None = None, strategy: str = "fsdp2") -> DictConfig:
    return OmegaConf.create(
        {
            "gtpo_verl": {"fused_entropy": fused},
            "actor_rollout_ref": {"actor": {"strategy": strategy, "checkpoint": {"load_contents": contents}}},
            "data": {"shuffle": True},
            "algorithm": {"filter_groups": {"enable": True}},
        }
    )


def changed(*keys: str) -> dict:
    return dict.fromkeys(keys, (1, 2))


@pytest.mark.parametrize("option", ["lr", "betas", "weight_decay", "override_optimizer_config.eps"])
def test_options_of_the_optimizer(option: str) -> None:
    """Our engine keeps the configuration's; verl's takes the checkpoint's."""
    key = f"{OPTIM}.{option}"
    assert remarks(changed(key), config()) == {}
    said = remarks(changed(key), config(fused=False))
    assert without_effect(said) == [key]
    assert without_effect(remarks(changed(key), config(strategy="megatron"))) == [key]
    assert remarks(changed(key), config(fused=False, contents=["model"])) == {}


@pytest.mark.parametrize(
    "key",
    [f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.clip_grad", "trainer.total_training_steps"],
)
def test_what_is_not_restored_holds(key: str) -> None:
    assert remarks(changed(key), config(fused=False)) == {}


def test_the_data() -> None:
    assert without_effect(remarks(changed("data.seed"), config())) == ["data.seed"]
    said = remarks(changed("data.train_files", "actor_rollout_ref.model.path", "data.train_batch_size"), config())
    assert set(said) == {"data.train_files", "actor_rollout_ref.model.path"}
    assert without_effect(said) == []
    batches = config()
    batches.algorithm.filter_groups.enable = False
    assert "data.train_batch_size" in remarks(changed("data.train_batch_size"), batches)


@pytest.mark.parametrize("name", ["optimizer", "optimizer_impl"])
def test_another_optimizer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: 1 -> 2: the checkpoint holds the state of 1"):
        refuse_other_optimizer(changed(f"{OPTIM}.{name}"), config())
    refuse_other_optimizer(changed(f"{OPTIM}.{name}"), config(contents=["model"]))


def test_the_order_of_the_prompts_is_the_checkpoints() -> None:
    """The seed is without effect: of verl's own sampler and loader, with another seed, resumed."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.utils import create_rl_sampler

    def loader(seed: int) -> StatefulDataLoader:
        rows = list(range(12))
        data = OmegaConf.create({"shuffle": True, "seed": seed})
        return StatefulDataLoader(rows, batch_size=3, sampler=create_rl_sampler(data, rows))  # type: ignore[arg-type]

    def order(loaded: StatefulDataLoader) -> list[list[int]]:
        return [batch.tolist() for batch in loaded]

    whole = order(loader(1))
    first, seen = loader(1), []
    for batch in first:
        seen.append(batch.tolist())
        if len(seen) == 2:
            break
    state = first.state_dict()
    second = loader(2)
    second.load_state_dict(state)
    assert seen + order(second) == whole
    assert order(loader(2)) != whole
