"""Tokens of a batch in TransferQueue, whose place a dictionary takes; e2e/test_training.py has the real one."""

import numpy as np
import pytest
import torch
from omegaconf import open_dict
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gtpo_verl.algorithms import shaped_rewards
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.inspect import dump
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.token_dump import TokenDump, as_pieces, chosen_rows

LENGTHS = [5, 3, 4, 2, 6, 3, 2]
UIDS = ["a", "b", "a", "b", "c", "c", "c"]  # the last row is one that verl added
ACC = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
PADDING = [False] * 6 + [True]


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE that knows a few words; other characters are as many tokens as they have bytes."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(["so the answer is"] * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@pytest.fixture
def batch(monkeypatch):
    rng = np.random.default_rng(0)

    def floats():
        return [torch.tensor(rng.exponential(0.5, n).astype(np.float32)) for n in LENGTHS]

    fields = {
        "prompts": [torch.tensor([65, 66])] * 7,
        "responses": [torch.tensor(rng.integers(60, 80, n)) for n in LENGTHS],
        "response_mask": [torch.ones(n, dtype=torch.int64) for n in LENGTHS],
        "rm_scores": [torch.tensor([0.0] * (n - 1) + [acc]) for n, acc in zip(LENGTHS, ACC, strict=True)],
        **{name: floats() for name in ("entropy", "advantages", "old_log_probs", "rollout_log_probs")},
    }
    fields["response_mask"][0][1] = 0  # a tool's
    fields["response_mask"][6][:] = 0
    lists = {"uid": UIDS, "extra_fields": [{"reward_extra_info": {"acc": acc, "score": acc}} for acc in ACC]}
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(UIDS)]
    asked = []

    def fetch(some, names):
        asked.append((len(some.keys), list(names)))
        rows = [keys.index(key) for key in some.keys]
        content = {name: jagged([fields[name][row] for row in rows]) for name in names if name in fields}
        result = TensorDict(content, batch_size=len(rows))
        for name in names:
            if name in lists:
                result.set_non_tensor(name, [lists[name][row] for row in rows])
        return result

    monkeypatch.setattr(transfer, "fetch", fetch)
    batch = transfer.Batch(keys=keys, tags=[{"is_padding": one} for one in PADDING], partition_id="train")
    return batch, fields, asked


def token_dump(folder, *overrides):
    config = compose_config(["algorithm=gtpo_v2", "model=tiny", f"gtpo_verl.token_dump_dir={folder}", *overrides])
    return TokenDump(config, RecipeSettings.from_config(config))


def test_whole_groups_with_all_that_was_computed(batch, tokenizer, tmp_path) -> None:
    handle, fields, asked = batch
    token_dump(tmp_path, "gtpo_verl.token_dump_freq=2").write(handle, 4, tokenizer)
    step = dump.read(tmp_path / "step_4.parquet")
    assert (step.step, step.algorithm) == (4, "gtpo_v2")
    assert step.settings["gtpo"]["clip"]["enable"] is True  # resolved for the estimator
    assert step.settings["loss_mode"] == "gtpo"
    rows = [0, 2, 4, 5, 1, 3]  # right and wrong first, then the group that is all right; without verl's own row
    assert [one.uid for one in step.responses] == [UIDS[row] for row in rows]
    assert [one.right for one in step.responses] == [ACC[row] == 1 for row in rows]
    assert [one.score for one in step.responses] == [ACC[row] for row in rows]
    for one, row in zip(step.responses, rows, strict=True):
        np.testing.assert_array_equal(one.ids, fields["responses"][row])
        np.testing.assert_array_equal(one.mask, fields["response_mask"][row] != 0)
        for name in ("entropy", "advantages", "old_log_probs", "rollout_log_probs"):
            np.testing.assert_array_equal(one.values[name], fields[name][row])
        assert "".join(step.pieces[token] for token in one.tokens) == tokenizer.decode(fields["responses"][row])
        assert one.reward == {"acc": ACC[row], "score": ACC[row]}
        assert one.prompt == tokenizer.decode([65, 66])
    assert asked[-1][0] == len(rows)  # the tokens of no other row travel


def test_shaped_rewards_and_length_penalty_are_those_of_the_algorithm(batch, tokenizer, tmp_path) -> None:
    handle, fields, _ = batch
    penalty = ["enable=true", "max_length=6", "buffer=3"]
    keys = [f"algorithm.gtpo.length_penalty.{one}" for one in penalty]
    token_dump(tmp_path, "gtpo_verl.token_dump_freq=1", *keys).write(handle, 1, tokenizer)
    step = dump.read(tmp_path / "step_1.parquet")
    rows = [0, 2, 4, 5, 1, 3]
    masks = [fields["response_mask"][row] != 0 for row in rows]
    want = shaped_rewards(
        "gtpo_v2",
        torch.cat([fields["entropy"][row][mask] for row, mask in zip(rows, masks, strict=True)]),
        torch.tensor([0, *np.cumsum([int(mask.sum()) for mask in masks])]),
        torch.tensor([0, 0, 1, 1, 2, 2]),
        torch.tensor([ACC[row] == 1 for row in rows]),
        {"length_penalty": {"enable": True, "max_length": 6, "buffer": 3}},
    )
    got = np.concatenate([one.values["shaped_rewards"][one.mask] for one in step.responses])
    np.testing.assert_array_equal(got, want.rewards)
    assert [one.length_penalty for one in step.responses] == pytest.approx(want.length_penalty.tolist())
    assert min(want.length_penalty) < 0


def test_only_so_many_groups_and_only_when_due(batch, tokenizer, tmp_path) -> None:
    handle, *_ = batch
    due = token_dump(tmp_path, "gtpo_verl.token_dump_freq=3", "gtpo_verl.token_dump_groups=1")
    for step in (1, 2, 3, 4):
        due.write(handle, step, tokenizer)
    assert list(dump.steps(tmp_path)) == [3]
    assert {one.uid for one in dump.read(tmp_path / "step_3.parquet").responses} == {"a"}
    token_dump(tmp_path / "none").write(handle, 3, tokenizer)
    assert not (tmp_path / "none").exists()


def test_a_method_without_shaped_rewards_and_a_reward_without_the_metric(batch, tokenizer, tmp_path) -> None:
    handle, *_ = batch
    written = token_dump(tmp_path, "algorithm=dapo", "gtpo_verl.token_dump_freq=1")
    with open_dict(written.config):
        written.config.algorithm.gtpo.success.key = "nothing"
    written.write(handle, 1, tokenizer)
    step = dump.read(tmp_path / "step_1.parquet")
    assert step.algorithm == "grpo"
    assert step.settings["norm_adv_by_std_in_grpo"] is True
    assert all("shaped_rewards" not in one.values and one.length_penalty is None for one in step.responses)
    assert {one.right for one in step.responses if one.uid == "b"} == {True}  # by the reward


def test_a_full_disk_ends_no_run(batch, tokenizer, tmp_path, caplog) -> None:
    handle, *_ = batch
    (tmp_path / "tokens").touch()  # no folder can be made here
    token_dump(tmp_path / "tokens", "gtpo_verl.token_dump_freq=1").write(handle, 1, tokenizer)
    assert "tokens of step 1 were not dumped" in caplog.text


def test_a_bound_that_one_step_exceeds_is_said(batch, tokenizer, tmp_path, caplog) -> None:
    handle, *_ = batch
    small = ["gtpo_verl.token_dump_freq=1", "gtpo_verl.token_dump_max_gib=1e-6"]
    for step in (1, 2):
        token_dump(tmp_path, *small).write(handle, step, tokenizer)
    assert list(dump.steps(tmp_path)) == [2]
    assert "larger than gtpo_verl.token_dump_max_gib=1e-06" in caplog.text


def test_later_steps_are_forgotten_also_where_no_more_are_dumped(batch, tokenizer, tmp_path) -> None:
    handle, *_ = batch
    for step in (1, 2, 3):
        token_dump(tmp_path, "gtpo_verl.token_dump_freq=1").write(handle, step, tokenizer)
    token_dump(tmp_path).forget_after(1)
    assert list(dump.steps(tmp_path)) == [1]


def test_groups_are_whole_and_those_with_both_kinds_come_first() -> None:
    uids, right = ["a", "b", "a", "b", "c", "c"], [True, True, True, False, False, True]
    assert chosen_rows(uids, right, [False] * 6, 2) == [1, 3, 4, 5]
    assert chosen_rows(uids, right, [False] * 6, 9) == [1, 3, 4, 5, 0, 2]
    assert chosen_rows(uids, right, [False, False, False, True, False, False], 9) == [4, 5, 0, 2, 1]


@pytest.mark.parametrize("text", ["so the answer is 12", "π≈3.14, 🤔🤔 so", "數學", "é" * 40, "\n\t so\r\n"])
def test_pieces_put_together_are_the_text(tokenizer, text) -> None:
    ids = np.array(tokenizer(text).input_ids)
    vocabulary, (pieces,) = as_pieces(tokenizer, [ids])
    assert len(pieces) == len(ids)
    assert "".join(vocabulary[piece] for piece in pieces) == text
    assert "\ufffd" not in "".join(vocabulary[piece] for piece in pieces)


def test_bytes_that_are_no_text_do_not_swallow_what_follows(tokenizer) -> None:
    broken = tokenizer("🤔").input_ids[:2]
    ids = np.array(broken + tokenizer("é so").input_ids + broken)
    vocabulary, (pieces,) = as_pieces(tokenizer, [ids])
    text = "".join(vocabulary[piece] for piece in pieces)
    assert text == "\ufffd" * 2 + "é so" + "\ufffd" * 2


def test_the_space_before_a_sentencepiece_word_is_kept() -> None:
    words = Tokenizer(models.WordLevel({"▁so": 0, "▁it": 1, "is": 2}, unk_token="is"))
    words.decoder = decoders.Metaspace()
    vocabulary, (pieces,) = as_pieces(PreTrainedTokenizerFast(tokenizer_object=words), [np.array([0, 1, 2])])
    assert [vocabulary[piece] for piece in pieces] == [" so", " it", "is"]
