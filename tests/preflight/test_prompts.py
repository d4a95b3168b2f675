"""Tokenizer against model, prompts against their limit."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gtpo_verl.preflight.findings import Status
from gtpo_verl.preflight.prompts import check_prompts, check_tokenizer, prompt_lengths


@pytest.fixture
def tokenizer(model_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_folder)


def test_a_tokenizer_that_fits(tokenizer: PreTrainedTokenizerBase) -> None:
    assert check_tokenizer(tokenizer, len(tokenizer)).status is Status.OK
    assert check_tokenizer(tokenizer, 64).status is Status.OK  # padded, as usual


def test_a_tokenizer_of_a_larger_model(tokenizer: PreTrainedTokenizerBase) -> None:
    largest = len(tokenizer) - 1
    finding = check_tokenizer(tokenizer, largest)
    assert (finding.status, finding.key) == (Status.FAIL, "actor_rollout_ref.model.tokenizer_path")
    assert f"ids up to {largest}, the model has {largest}" in finding.detail


def test_a_tokenizer_without_an_end(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.eos_token = None
    finding = check_tokenizer(tokenizer, 64)
    assert (finding.status, "no eos token" in finding.detail) == (Status.FAIL, True)


def test_a_tokenizer_without_a_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    finding = check_tokenizer(tokenizer, 64, has_template=False)
    assert (finding.status, finding.key) == (Status.FAIL, "actor_rollout_ref.model.custom_chat_template")


def test_lengths_are_those_of_the_templated_prompts(tokenizer: PreTrainedTokenizerBase, data_file: Path) -> None:
    assert prompt_lengths(tokenizer, [data_file], "prompt", {}) == [6, 6, 11]
    assert prompt_lengths(tokenizer, [data_file, data_file], "prompt", {}) == [6, 6, 11, 6, 6, 11]


@pytest.mark.parametrize(
    ("limit", "filtered", "status", "key"),
    [
        (11, False, Status.OK, ""),
        (10, True, Status.WARN, "data.max_prompt_length"),
        (10, False, Status.FAIL, "data.filter_overlong_prompts"),
        (5, True, Status.FAIL, "data.max_prompt_length"),  # nothing would be left
    ],
)
def test_prompts_against_the_limit(limit: int, filtered: bool, status: Status, key: str) -> None:
    finding = check_prompts("data.train_files: prompts", [6, 6, 11], limit, filtered)
    assert (finding.status, finding.key) == (status, key)
    assert f"the longest has 11 of {limit} tokens" in finding.detail
