"""verl fetches prompts in the same order whether or not a checkpoint lies between two of them: the trainer adds
nothing, and this is what it relies on. One cut after each batch of three epochs, at both of their ends."""

import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_base import PPOTrainer


class Prompts(torch.utils.data.Dataset):
    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index])


def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"raw_prompt": torch.stack(rows)}


class Fetcher:
    """What verl's trainer has of its data loader (`PPOTrainer._init_dataloader`), and the method that reads it."""

    def __init__(self, count: int, batch_size: int, workers: int, shuffle: bool, state: dict | None = None):
        dataset = Prompts(count)
        self.train_dataloader = StatefulDataLoader(
            dataset=dataset,
            batch_size=batch_size,
            num_workers=workers,
            drop_last=True,
            collate_fn=collate,
            sampler=create_rl_sampler(OmegaConf.create({"shuffle": shuffle, "seed": 1}), dataset),
        )
        self.train_dataloader_it = None
        if state is not None:
            self.train_dataloader.load_state_dict(state)

    def fetch(self, batches: int) -> list[list[int]]:
        fetch = PPOTrainer._fetch_one_gen_batch
        return [fetch(self)["raw_prompt"].flatten().tolist() for _ in range(batches)]  # type: ignore[arg-type]


def test_a_prompt_has_another_uid_whenever_it_is_fetched() -> None:
    """Also where it stands in the data twice, or the data has uids of its own: groups are never run together."""
    fetcher = Fetcher(4, 2, 0, shuffle=True)
    fetcher.train_dataloader.collate_fn = lambda rows: {**collate(rows), "uid": ["a prompt's"] * len(rows)}
    uids = [uid for _ in range(6) for uid in PPOTrainer._fetch_one_gen_batch(fetcher)["uid"]]  # type: ignore[arg-type]
    assert len(set(uids)) == len(uids) == 12


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("count", "batch_size", "shuffle"),
    [(4, 1, True), (4, 2, True), (5, 2, True), (4, 2, False)],
    ids=["dynamic sampling", "whole batches", "a rest", "in order"],
)
def test_goes_on_where_it_stopped(count: int, batch_size: int, shuffle: bool, workers: int) -> None:
    total = 3 * (count // batch_size) + 1
    data = (count, batch_size, workers, shuffle)
    uninterrupted = Fetcher(*data).fetch(total)
    epochs = [uninterrupted[i : i + count // batch_size] for i in range(0, total - 1, count // batch_size)]
    assert (epochs[0] != epochs[1]) == shuffle
    for cut in range(1, total):
        before = Fetcher(*data)
        fetched = before.fetch(cut)
        after = Fetcher(*data, state=before.train_dataloader.state_dict())
        assert fetched + after.fetch(total - cut) == uninterrupted, cut
