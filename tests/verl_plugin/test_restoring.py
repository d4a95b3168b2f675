"""After a resume, an optimizer has the state of the checkpoint and the options of the configuration."""

import copy
from collections.abc import Callable

import pytest
import torch
from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

from gtpo_verl.verl_plugin.restoring import configured

SCHEDULES: dict[str, Callable] = {
    "constant": lambda optimizer, steps: get_constant_schedule_with_warmup(optimizer, num_warmup_steps=0),
    "warm-up": lambda optimizer, steps: get_constant_schedule_with_warmup(optimizer, num_warmup_steps=6),
    "cosine": lambda optimizer, steps: get_cosine_schedule_with_warmup(optimizer, 2, steps, min_lr_ratio=0.1),
}


class Training:
    def __init__(self, schedule: str, steps: int = 10, **options):
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(5))
        self.optimizer = torch.optim.AdamW([self.weight], **{"lr": 0.1, **options})
        self.scheduler = SCHEDULES[schedule](self.optimizer, steps)

    def train(self, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            rates.append(self.optimizer.param_groups[0]["lr"])
            (self.weight**2).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
        return rates

    def state(self) -> tuple:
        return copy.deepcopy((self.weight.data, self.optimizer.state_dict(), self.scheduler.state_dict()))

    def resume(self, state: tuple) -> "Training":
        with configured(self.optimizer, self.scheduler, ["eps"]):
            self.weight.data.copy_(state[0])
            self.optimizer.load_state_dict(copy.deepcopy(state[1]))
            self.scheduler.load_state_dict(copy.deepcopy(state[2]))
        return self


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stopped", [0, 1, 4, 9])
def test_an_unchanged_configuration_goes_on_as_if_never_stopped(schedule: str, stopped: int) -> None:
    whole = Training(schedule)
    rates = whole.train(10)
    first = Training(schedule)
    assert first.train(stopped) == rates[:stopped]
    second = Training(schedule).resume(first.state())
    assert second.train(10 - stopped) == rates[stopped:]
    assert torch.equal(second.weight, whole.weight)
    assert second.scheduler.get_last_lr() == whole.scheduler.get_last_lr()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_new_learning_rate_holds_in_the_shape_of_the_schedule(schedule: str) -> None:
    first = Training(schedule)
    first.train(4)
    second = Training(schedule, lr=0.001).resume(first.state())
    assert second.train(6) == pytest.approx(Training(schedule, lr=0.001).train(10)[4:])


def test_a_new_schedule_holds_from_the_first_step() -> None:
    first = Training("constant")
    first.train(4)
    second = Training("cosine", steps=20).resume(first.state())
    assert second.train(16) == pytest.approx(Training("cosine", steps=20).train(20)[4:])


def test_other_options_hold_and_the_state_is_kept() -> None:
    first = Training("constant")
    first.train(3)
    state = first.state()
    second = Training("constant", betas=(0.5, 0.6), weight_decay=0.3, eps=1e-4).resume(state)
    (group,) = second.optimizer.param_groups
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.5, 0.6), 0.3, 1e-4)
    moments = second.optimizer.state[second.weight]
    assert moments["step"] == 3
    assert torch.equal(moments["exp_avg"], state[1]["state"][0]["exp_avg"])


def test_a_learning_rate_that_is_a_tensor() -> None:
    def training(rate: float) -> Training:
        made = Training("constant")
        made.optimizer = torch.optim.AdamW([made.weight], lr=torch.tensor(rate), foreach=False)
        made.scheduler = SCHEDULES["warm-up"](made.optimizer, 10)
        return made

    first = training(0.1)
    first.train(3)
    second = training(0.01).resume(first.state())
    rate = second.optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    assert rate.item() == pytest.approx(0.01 * 3 / 6)


def test_a_worker_without_an_optimizer() -> None:
    with configured(None, None):
        pass
