"""The big model's inputs, exact pass, configuration and tables, on a tiny Qwen2 and constructed runs."""

import json
import zlib
from pathlib import Path

import pytest
import torch

from benchmarks.big_model import exact, inputs
from gtpo_verl.preflight.model_files import model_problems

TINY = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def tiny(folder: Path, tied: bool = False, **options) -> Path:
    inputs.save_model(folder, {**TINY, "tie_word_embeddings": tied}, **options)
    return folder


# ---- the model's folder ----


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_what_was_written(tmp_path, tied):
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    folder = tiny(tmp_path / "model", tied, shard_bytes=100_000)
    model, report = Qwen2ForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == TINY["vocab_size"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "é?"}], add_generation_prompt=True)


def test_logits_have_the_wanted_spread(tmp_path):
    from transformers import Qwen2ForCausalLM

    model = Qwen2ForCausalLM.from_pretrained(tiny(tmp_path / "model"), dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.randint(0, 1000, (4, 100), generator=torch.Generator().manual_seed(0))).logits
    assert logits.std().item() == pytest.approx(inputs.SPREAD, rel=0.05)
    first, last = logits[0, 10], logits[0, 90]
    assert torch.corrcoef(torch.stack([first, last]))[0, 1] < 0.95  # positions differ


def test_shards_and_index_are_one_whole_model(tmp_path):
    folder = tiny(tmp_path / "model", shard_bytes=100_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert len(files) > 2
    assert set(index["weight_map"].values()) == files
    assert index["metadata"]["total_size"] == sum(
        2 * exact.ModelFolder(folder)(name).numel() for name in index["weight_map"]
    )
    assert model_problems(folder) == []


def test_the_same_seed_gives_the_same_weights_however_they_are_split(tmp_path):
    one, other = tiny(tmp_path / "a", shard_bytes=50_000, threads=3), tiny(tmp_path / "b", threads=1)
    another = tiny(tmp_path / "c", seed=2)
    first, second, third = (exact.ModelFolder(folder) for folder in (one, other, another))
    assert sorted(first.names()) == sorted(second.names())
    assert all(torch.equal(first(name), second(name)) for name in first.names())
    assert not torch.equal(first("lm_head.weight"), third("lm_head.weight"))
    query, key = (first(f"model.layers.0.mlp.{name}_proj.weight") for name in ("gate", "up"))
    assert not torch.equal(query, key)


def test_an_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    import safetensors.torch

    real = safetensors.torch.save_file

    def full(tensors, path, **options):
        real(tensors, path, **options)
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        tiny(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writing_left_is_taken_away(tmp_path):
    (tmp_path / "model.part").mkdir()
    (tmp_path / "model.part" / "model-00009-of-00009.safetensors").write_bytes(b"half")
    assert model_problems(tiny(tmp_path / "model")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_too_small_a_disk_is_named_before_anything_is_written(tmp_path, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(inputs.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"model: the weights take 0\.\d GB, 0\.0 GB are free"):
        tiny(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_folder_that_is_there_and_a_vocabulary_without_bytes(tmp_path):
    with pytest.raises(FileExistsError, match="exists already"):
        tiny(tmp_path)
    with pytest.raises(ValueError, match="vocab_size=100"):
        inputs.save_model(tmp_path / "model", {**TINY, "vocab_size": 100})


def test_32b_has_the_published_number_of_parameters():
    from transformers import Qwen2Config

    from gtpo_verl.preflight.architecture import shape_of

    assert shape_of(Qwen2Config(**inputs.SHAPES["32b"])).parameters == 32_763_876_352
    assert shape_of(Qwen2Config(**inputs.SHAPES["7b"])).parameters == 7_615_616_512


def test_half_of_all_texts_are_right(tmp_path):
    inputs.save_data(tmp_path)
    names: dict = {}
    exec((tmp_path / "reward.py").read_text(), names)
    scores = [names["compute_score"]("words", f"text {number}", "even")["acc"] for number in range(2000)]
    assert 0.45 < sum(scores) / 2000 < 0.55
    assert scores[0] == float(zlib.crc32(b"text 0") % 2 == 0)


# ---- the exact pass ----


def sequences(count=3):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, 1000, (4 + n,), generator=generator), torch.randint(0, 1000, (30 + n,), generator=generator))
        for n in range(count)
    ]


@pytest.mark.parametrize("tied", [False, True])
def test_layer_by_layer_is_the_whole_model_in_fp32(tmp_path, monkeypatch, tied):
    from transformers import AutoConfig, Qwen2ForCausalLM

    folder = tiny(tmp_path / "model", tied)
    monkeypatch.setattr(exact, "_ROWS", 7)  # several blocks of logits
    found = exact.log_probs_and_entropies(AutoConfig.from_pretrained(folder), exact.ModelFolder(folder), sequences())
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for (prompt, response), (log_p, entropy) in zip(sequences(), found, strict=True):
        with torch.no_grad():
            logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits)
        torch.testing.assert_close(log_p, expected.log_prob(response), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(entropy, expected.entropy(), atol=1e-4, rtol=1e-4)


def test_no_more_than_a_layer_is_held(tmp_path):
    """Each tensor is asked for once, and gone before the next layer's are."""
    import weakref

    from transformers import AutoConfig

    folder = tiny(tmp_path / "model")
    read, alive, most = exact.ModelFolder(folder), [], 0

    def watched(name):
        nonlocal most
        tensor = read(name).float()  # as `to` would return it: the tensor that the module gets
        alive.append((name, weakref.ref(tensor)))
        most = max(most, len({name.split(".")[2] for name, ref in alive if ref() is not None and ".layers." in name}))
        return tensor

    exact.log_probs_and_entropies(AutoConfig.from_pretrained(folder), watched, sequences(1))
    assert sorted(name for name, _ in alive) == sorted(read.names())
    assert most == 1
