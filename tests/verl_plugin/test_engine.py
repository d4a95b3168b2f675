"""verl's real FSDP engine on gloo, with and without our log-probabilities and entropies.

Two launches (one rank, two ranks) run every case; the tests read what came out. The truth is the Hugging Face model
in float64, sequence by sequence.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_models import VOCABULARY, save_models

from gtpo_verl.configuration.preparation import engine_environment

pytestmark = pytest.mark.timeout(600)
TEMPERATURES = [0.5, 0.7, 1.0, 1.5, 2.0, 0.6, 0.9, 1.1]
SHUFFLED = [5, 2, 7, 0, 3, 6, 1, 4]

ONE_RANK = {
    "fsdp": {"strategy": "fsdp"},
    "fsdp2": {},
    "fsdp padded": {"strategy": "fsdp", "remove_padding": False},
    "fsdp2 padded": {"remove_padding": False},
    "two responses a micro-batch": {"micro_batch": 2},
    "two responses a micro-batch, padded": {"micro_batch": 2, "remove_padding": False},
    "bf16": {"dtype": "bf16"},
    "bf16 padded": {"dtype": "bf16", "remove_padding": False},
    "tied embeddings": {"model": "tied"},
    "no gradient checkpointing": {"checkpointing": False},
    "LoRA": {"lora": 4},
    "temperature": {"temperature": 0.7},
    "temperature padded": {"temperature": 0.7, "remove_padding": False},
    "temperature per response": {"temperature": TEMPERATURES},
    "temperature per response, padded": {"temperature": TEMPERATURES, "remove_padding": False},
    "shuffled": {"order": SHUFFLED},
    "other micro-batches": {"tokens": 70, "update": {"tokens": 20}},
    "other micro-batches, bf16": {"tokens": 70, "update": {"tokens": 20}, "dtype": "bf16"},
    "no entropy": {"entropy": False},
    "entropy_coeff": {"entropy_coeff": 0.01},
    "entropy_coeff padded": {"entropy_coeff": 0.01, "remove_padding": False},
    "sum of squared probabilities": {"flags": {"calculate_sum_pi_squared": True}},
    # FSDP2 keeps the LM head's weight sharded where verl's fused forward reads it; stock verl fails there.
    "verl's fused kernels": {"strategy": "fsdp", "fused_kernels": True},
}
TWO_RANKS = {
    "two ranks": {},
    "two ranks padded": {"remove_padding": False},
    "two ranks, LoRA": {"lora": 4},
    # Attention is off in this model: what a token sees does not depend on where the sequence was cut.
    "sp=2": {"model": "tokenwise", "sp": 2},
    "sp=2, odd number of tokens": {"model": "tokenwise", "sp": 2, "lengths": [9, 6, 8, 6]},
    "sp=2, temperature per response": {"model": "tokenwise", "sp": 2, "temperature": TEMPERATURES},
}
CASES = {**ONE_RANK, **TWO_RANKS}


@pytest.mark.parametrize("lengths", [[4], [9, 5, 14], [1, 1, 2]])
@pytest.mark.parametrize("padding", [0, 1, 3, 20])
def test_flash_attention_is_told_what_it_would_look_for(lengths: list[int], padding: int) -> None:
    """The same as transformers finds in the position ids that verl makes, padding included."""
    from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
    from verl.workers.engine.utils import pad_packed_inputs

    from gtpo_verl.verl_plugin.engine import packed_spans

    ids = torch.nested.as_nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged)
    positions = ids.values().unsqueeze(0)
    _, positions = pad_packed_inputs(positions, positions, padding)
    (starts, _), (longest, _) = prepare_fa_kwargs_from_position_ids(positions)
    spans = packed_spans(ids, padding)
    for side in "qk":
        assert torch.equal(spans[f"cu_seq_lens_{side}"], starts)
        assert spans[f"cu_seq_lens_{side}"].dtype == torch.int32
        assert spans[f"max_length_{side}"] == longest


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpa"])
@pytest.mark.parametrize("kind", ["language", "vision", "takes no others", "LoRA", "LoRA, takes no others"])
def test_who_is_told(kind: str, attention: str) -> None:
    """Whoever hands it on to flash attention; not a model that hands it on to the attention of its images as well."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from gtpo_verl.verl_plugin.engine import FusedEntropy

    class TakesNoOthers(LlamaForCausalLM):
        def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=None):
            return super().forward(input_ids, attention_mask, position_ids, use_cache=use_cache)

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = LlamaConfig(vocab_size=8, **sizes)
    make = TakesNoOthers if "takes no others" in kind else LlamaForCausalLM
    if kind == "vision":
        config = Qwen2_5_VLConfig(text_config=sizes, vision_config={"depth": 1})
        make = Qwen2_5_VLForConditionalGeneration
    with torch.device("meta"):
        model = make(config)
        if "LoRA" in kind:
            model = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    model.config._attn_implementation = attention
    engine = object.__new__(FusedEntropy)
    engine.module, engine.use_ulysses_sp = model, False
    assert engine._takes_spans() == (kind in ("language", "LoRA") and attention == "flash_attention_2")


@pytest.mark.parametrize("parallel", [False, True])
def test_layers_without_attention_are_told_of_tokens_that_they_have(parallel: bool) -> None:
    """With sequence parallelism, attention sees all tokens of a micro-batch, linear attention a rank's own."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    from gtpo_verl.verl_plugin.engine import FusedEntropy

    with torch.device("meta"):
        model = Qwen3NextForCausalLM(Qwen3NextConfig(num_hidden_layers=4, num_experts=0))
    model.config._attn_implementation = "flash_attention_2"
    engine = object.__new__(FusedEntropy)
    engine.module, engine.use_ulysses_sp = model, parallel
    assert engine._takes_spans() == (not parallel)


def launch(folder: Path, cases: dict, world_size: int) -> list[dict]:
    save_models(folder)
    # verl's engine first: from ours on, batches are handled by `jagged`. Its fused kernels patch models for good.
    order = sorted(itertools.product((False, True), cases), key=lambda one: cases[one[1]].get("fused_kernels", False))
    both = {
        (name, ours): {"model": "untied", "vocabulary": VOCABULARY, **cases[name], "ours": ours} for ours, name in order
    }
    torch.save(both, folder / "cases.pt")
    script = str(Path(__file__).with_name("engine_process.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(folder), str(rank), str(world_size)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, said[0][-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_rank")
    return folder, launch(folder, ONE_RANK, 1)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_ranks")
    return folder, launch(folder, TWO_RANKS, 2)


@pytest.fixture
def ran(request):
    """ran(name): (model folder, verl's results per rank, ours per rank) of a case."""

    def get(name):
        folder, ranks = request.getfixturevalue("one_rank" if name in ONE_RANK else "two_ranks")
        for rank in ranks:
            for ours in (False, True):
                assert "error" not in rank[name, ours], rank[name, ours]["error"]
        model = folder / CASES[name].get("model", "untied")
        return model, [rank[name, False] for rank in ranks], [rank[name, True] for rank in ranks]

    return get


def rows_of(case: dict, rank: int, world_size: int) -> tuple[list[int], list[float]]:
    """Lengths and temperatures of a rank's responses, in its order."""
    lengths = case.get("lengths", [9, 5, 14, 6, 11, 5, 8, 12])
    order = case.get("order", range(len(lengths)))
    share, of = rank // case.get("sp", 1), world_size // case.get("sp", 1)
    temperature = case.get("temperature", 1.0)
    temperatures = temperature if isinstance(temperature, list) else [temperature] * len(lengths)
    return [lengths[i] for i in order][share::of], [temperatures[i] for i in order][share::of]


def exact(model: Path, case: dict, input_ids: torch.Tensor, rank: int, world_size: int):
    """For every response but its last token: float64 log p(next token) and entropy where that token is drawn.

    Also where these lie among the packed tokens.
    """
    from transformers import Qwen2ForCausalLM

    policy = Qwen2ForCausalLM.from_pretrained(model, attn_implementation="eager").double()
    log_prob, entropy, at, start = [], [], [], 0
    for length, temperature in zip(*rows_of(case, rank, world_size), strict=True):
        ids = input_ids[start : start + length]
        with torch.no_grad():
            log_p = torch.log_softmax(policy(ids[None]).logits[0, :-1] / temperature, -1)
        log_prob.append(log_p.gather(-1, ids[1:, None]).squeeze(-1))
        entropy.append(-(log_p.exp() * log_p).sum(-1))
        at.append(torch.arange(start, start + length - 1))
        start += length
    return torch.cat(log_prob), torch.cat(entropy), torch.cat(at)


def half(case: dict) -> bool:
    return case.get("dtype") == "bf16"


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("LoRA", "two ranks, LoRA", "no entropy")])
def test_each_token_gets_the_log_prob_and_entropy_of_where_it_was_drawn(ran, name):
    """A LoRA adapter starts at zero but is another model for Hugging Face; it is compared with verl's below."""
    model, _, ours = ran(name)
    for rank, result in enumerate(ours):
        log_prob, entropy, at = exact(model, CASES[name], result["input_ids"], rank, len(ours))
        tolerance = {"rtol": 5e-2, "atol": 1e-1} if half(CASES[name]) else {"rtol": 1e-5, "atol": 2e-5}
        torch.testing.assert_close(result["old"]["log_probs"][at].double(), log_prob, **tolerance)
        torch.testing.assert_close(result["old"]["entropy"][at].double(), entropy, **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_verls_engine_and_ours_agree_within_the_dtype(ran, name):
    _, stock, ours = ran(name)
    tolerance = {"rtol": 5e-2, "atol": 1e-1} if half(CASES[name]) else {"rtol": 1e-5, "atol": 2e-5}
    for theirs, mine in zip(stock, ours, strict=True):
        assert mine["old"].keys() == theirs["old"].keys()
        assert mine["new"].keys() == theirs["new"].keys()
        for run in ("old", "new"):
            for key in theirs[run]:
                torch.testing.assert_close(mine[run][key].float(), theirs[run][key].float(), **tolerance)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-2 if half(CASES[name]) else 1e-4, abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_verls_within_the_dtype(ran, name):
    _, stock, ours = ran(name)
    limit = 3e-2 if half(CASES[name]) else 1e-5
    for theirs, mine in zip(stock, ours, strict=True):
        assert mine["gradients"].keys() == theirs["gradients"].keys()
        assert theirs["gradients"]
        for parameter, truth in theirs["gradients"].items():
            assert (mine["gradients"][parameter] - truth).norm() <= limit * truth.norm() + 1e-6, parameter


EQUAL_MICRO_BATCHES = [n for n in CASES if "other micro-batches" not in n and n != "verl's fused kernels"]


@pytest.mark.parametrize("name", EQUAL_MICRO_BATCHES)
def test_with_the_policy_unchanged_every_ratio_is_one(ran, name):
    """Otherwise the clip acts on rounding noise."""
    for result in ran(name)[2]:
        ratio = (result["new"]["log_probs"].double() - result["old"]["log_probs"].double()).exp()
        assert (ratio - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["other micro-batches", "other micro-batches, bf16"])
def test_other_micro_batches_spread_the_ratio_no_more_than_verls_engine(ran, name):
    _, stock, ours = ran(name)
    spread = [(r[0]["new"]["log_probs"] - r[0]["old"]["log_probs"]).double().abs().max() for r in (stock, ours)]
    assert spread[1] <= max(spread[0], 1e-6)


def test_entropies_follow_their_tokens_through_shuffled_micro_batches(ran):
    plain, shuffled = ran("fsdp2")[2][0], ran("shuffled")[2][0]
    lengths = rows_of(CASES["fsdp2"], 0, 1)[0]
    rows = plain["old"]["entropy"].split(lengths)
    moved = shuffled["old"]["entropy"].split([lengths[i] for i in SHUFFLED])
    for row, i in zip(moved, SHUFFLED, strict=True):
        torch.testing.assert_close(row[:-1], rows[i][:-1], rtol=1e-5, atol=1e-6)


def test_the_entropy_bonus_reaches_the_gradient(ran):
    """entropy_coeff is verl's: its entropy carries the gradient, beside our log-probabilities."""
    without, with_bonus = ran("fsdp2")[2][0]["gradients"], ran("entropy_coeff")[2][0]["gradients"]
    name = "lm_head.weight"
    assert (without[name] - with_bonus[name]).norm() > 1e-3 * without[name].norm()


@pytest.mark.parametrize("name", CASES)
def test_the_loss_sees_the_batch_as_verls_engine_shows_it(ran, name):
    _, stock, ours = ran(name)
    for theirs, mine in zip(stock, ours, strict=True):
        assert theirs["seen by the loss"]
        assert mine["seen by the loss"] == theirs["seen by the loss"]


@pytest.mark.parametrize("name", CASES)
def test_the_vendor_chooses_the_engine(ran, name):
    _, stock, ours = ran(name)
    assert {r["class"] for r in stock} == {"FSDPEngineWithLMHead"}
    assert {(r["class"], r["base"]) for r in ours} == {("FusedEntropyFSDPEngine", "FSDPEngineWithLMHead")}
    assert CASES[name].get("fused_kernels") or {r["batches"] for r in stock} == {"verl.utils.tensordict_utils"}
    assert {r["batches"] for r in ours} == {"gtpo_verl.verl_plugin.jagged"}


def test_the_switch_is_an_environment_variable(monkeypatch):
    monkeypatch.delenv("VERL_ENGINE_VENDOR", raising=False)
    assert engine_environment(fused_entropy=False) == {}
    assert engine_environment(fused_entropy=True) == {"VERL_ENGINE_VENDOR": "gtpo_verl"}


def test_another_vendors_engine_is_not_replaced_silently(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "metax")
    assert engine_environment(fused_entropy=False) == {}
    with pytest.raises(ValueError, match=r"metax.*fused_entropy=false"):
        engine_environment(fused_entropy=True)


REGISTRY = """
import itertools, json, os, sys
from gtpo_verl.verl_plugin.engine import register_engines
register_engines(); register_engines()
import verl
assert "verl.workers.engine.fsdp.transformer_impl" not in sys.modules, "importing verl must not import its engines"
from verl.workers.engine import EngineRegistry
found = []
for device, backend in itertools.product(sys.argv[1:], ("fsdp", "fsdp2")):
    os.environ["VERL_ENGINE_DEVICE"] = device  # verl looks at it whenever it is asked for an engine
    models = ["language_model"]
    for vendor in (None, "gtpo_verl"):
        if vendor:
            os.environ["VERL_ENGINE_VENDOR"] = vendor
            models.append("value_model")
        for model in models:
            found.append([device, backend, vendor, model, EngineRegistry.get_engine_cls(model, backend).__name__])
    del os.environ["VERL_ENGINE_VENDOR"]
print(json.dumps(found))
"""
DEVICES = ["cuda", "npu"]


@pytest.fixture(scope="module")
def registered():
    """[device, backend, vendor, model, class of the engine], of all devices in one process."""
    environment = {**os.environ, "VERL_PLATFORM": ""}
    environment.pop("VERL_ENGINE_VENDOR", None)
    command = [sys.executable, "-c", REGISTRY, *DEVICES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_registration_is_lazy_idempotent_and_leaves_verls_engines_in_place(device, registered):
    assert [found[1:] for found in registered if found[0] == device] == [
        [backend, *others]
        for backend in ("fsdp", "fsdp2")
        for others in (
            [None, "language_model", "FSDPEngineWithLMHead"],
            ["gtpo_verl", "language_model", "FusedEntropyFSDPEngine"],
            ["gtpo_verl", "value_model", "FSDPEngineWithValueHead"],
        )
    ]
