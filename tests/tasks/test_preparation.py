"""Preparing a task end to end, with a warm-up cut short."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from gtpo_verl.tasks import arithmetic, tiny_model
from gtpo_verl.tasks.data_files import check_data_file
from gtpo_verl.tasks.preparation import Prepared, prepare_arithmetic
from gtpo_verl.tasks.tiny_model import ModelConfig, WarmupConfig

QUICK = {
    "model": ModelConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2),
    "warmup": WarmupConfig(batch_size=4, probe_every=2, probe_problems=4, target_accuracy=0.0, max_response_length=8),
    "task": arithmetic.ArithmeticConfig(max_terms=5),
    "train_problems": 40,
    "val_problems": 10,
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare_arithmetic(tmp_path_factory.mktemp("cache"), seed=0, progress=False, **QUICK)


def test_files_are_what_verl_reads(prepared):
    assert check_data_file(prepared.train) == 40
    assert check_data_file(prepared.val) == 10
    assert (prepared.model / "model.safetensors").is_file()


def test_a_second_call_trains_nothing(prepared, monkeypatch):
    monkeypatch.setattr(tiny_model, "warm_up", None)
    cache_dir = prepared.train.parent.parent
    assert prepare_arithmetic(cache_dir, seed=0, progress=False, **QUICK) == prepared


def test_the_seed_reproduces_weights_and_another_one_changes_them(prepared, tmp_path):
    def weights(one: Prepared) -> torch.Tensor:
        return load_file(one.model / "model.safetensors")["model.embed_tokens.weight"]

    again = prepare_arithmetic(tmp_path, seed=0, progress=False, **QUICK)
    other = prepare_arithmetic(tmp_path, seed=1, progress=False, **QUICK)
    torch.testing.assert_close(weights(again), weights(prepared))
    assert not torch.equal(weights(other), weights(prepared))


def test_the_callers_random_state_and_threads_are_left_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    prepare_arithmetic(tmp_path, seed=0, progress=False, **QUICK)
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads


def test_a_failed_warm_up_leaves_no_folder(tmp_path):
    impossible = {**QUICK, "warmup": dataclasses.replace(QUICK["warmup"], target_accuracy=1.1, max_steps=2)}
    with pytest.raises(tiny_model.WarmupError):
        prepare_arithmetic(tmp_path, progress=False, **impossible)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_progress_is_told_in_plain_lines_without_a_terminal(tmp_path, capsys):
    prepare_arithmetic(tmp_path, progress=True, **QUICK)
    out = capsys.readouterr().out
    assert "step 2," in out
    assert "Tiny model ready" in out
