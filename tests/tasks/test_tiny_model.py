"""The tiny model: its tokenizer as verl needs it, its warm-up, its files."""

import math
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from gtpo_verl.tasks import arithmetic, tiny_model
from gtpo_verl.tasks.tiny_model import ModelConfig, WarmupConfig, WarmupError

SMALL = ModelConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
TASK = arithmetic.ArithmeticConfig(max_terms=3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    tokenizer = tiny_model.build_tokenizer()
    tiny_model.save(tiny_model.build_model(ModelConfig(), tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(saved):
    return AutoTokenizer.from_pretrained(saved)


def test_saved_model_agrees_with_its_tokenizer(saved, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(saved)
    assert model.config.vocab_size == len(tokenizer) == 259
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.dtype == torch.float32
    assert 0.3e6 <= sum(p.numel() for p in model.parameters()) <= 3e6


def test_newline_and_specials_are_one_token_each(tokenizer):
    for text in ("\n", "<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 1


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_round_trips_byte_by_byte(text):
    tokenizer = tiny_model.build_tokenizer()
    text = unicodedata.normalize("NFC", text.encode("utf-8", "ignore").decode())
    ids = tokenizer.encode(text, add_special_tokens=False)
    if "<|" not in text:
        assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_chat_is_laid_out_as_chatml(tokenizer):
    ids = tiny_model.encode_prompt(tokenizer, "1+2=?")
    assert tokenizer.decode(ids) == "<|im_start|>user\n1+2=?<|im_end|>\n<|im_start|>assistant\n"


def test_only_replies_and_their_end_are_learnt(tokenizer):
    pairs = iter([("1+2=?", "1+2=3\n#### 3"), ("4-1=?", "#### 3")])
    input_ids, labels = next(tiny_model._batches(tokenizer, pairs, 2))
    assert tokenizer.decode(labels[0][labels[0] >= 0]) == "1+2=3\n#### 3<|im_end|>"
    assert tokenizer.decode(labels[1][labels[1] >= 0]) == "#### 3<|im_end|>"
    assert (labels[labels >= 0] == input_ids[labels >= 0]).all()


def test_samples_report_length_and_entropy_up_to_the_end(tokenizer):
    torch.manual_seed(0)
    model = tiny_model.build_model(SMALL, tokenizer)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()  # uniform over the vocabulary
    samples = tiny_model.sample(model, tokenizer, ["1+2=?", "3+4-5+6=?"], 300)
    assert samples.entropies == pytest.approx([math.log(259)] * 2, rel=1e-4)
    assert all(1 <= length <= 300 for length in samples.lengths)


def test_warm_up_stops_by_the_accuracy_of_samples(tokenizer):
    torch.manual_seed(0)
    model = tiny_model.build_model(SMALL, tokenizer)
    config = WarmupConfig(batch_size=8, probe_every=5, probe_problems=8, target_accuracy=0.0, max_response_length=8)
    seen = []
    result = tiny_model.warm_up(model, tokenizer, 0, config, TASK, seen.append)
    assert result.steps == 5
    assert seen == result.history
    assert {"step", "loss", "accuracy", "length", "entropy", "seconds"} == set(seen[0])


def test_warm_up_says_when_it_misses_or_overshoots(tokenizer):
    torch.manual_seed(0)
    model = tiny_model.build_model(SMALL, tokenizer)
    short = {"batch_size": 4, "probe_every": 1, "probe_problems": 4, "max_response_length": 4}
    with pytest.raises(WarmupError, match=r"after 2 steps .* short of 0\.50"):
        tiny_model.warm_up(model, tokenizer, 0, WarmupConfig(**short, max_steps=2, target_accuracy=0.5), TASK)
    wrong_range = WarmupConfig(**short, target_accuracy=0.0, acceptable=(-1.0, -0.5))
    with pytest.raises(WarmupError, match="leapt"):
        tiny_model.warm_up(model, tokenizer, 0, wrong_range, TASK)
