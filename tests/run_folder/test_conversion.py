"""Shards of two ranks, written by verl's FSDP engine, become a Hugging Face model; or a refusal names the file.

tests/e2e/test_resume.py converts the checkpoint of a real run.
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder
from gtpo_verl.run_folder.conversion import check_actor, convert, find_actor

pytestmark = pytest.mark.timeout(600)
CASES = ["untied-fsdp2", "tied-fsdp2", "untied-fsdp"]


@pytest.fixture
def actor(saved: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(
        shutil.copytree(saved / "untied-fsdp2/global_step_1/actor", tmp_path / "checkpoints/global_step_3/actor")
    )


@pytest.mark.parametrize("case", CASES)
def test_is_the_model_that_the_ranks_hold(saved: Path, tmp_path: Path, case: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = convert(saved / case / "global_step_1", tmp_path / "deep/model")
    original = AutoModelForCausalLM.from_pretrained(saved / case.split("-")[0], dtype=torch.bfloat16)
    converted = AutoModelForCausalLM.from_pretrained(output, dtype="auto")
    assert converted.dtype == torch.bfloat16
    assert converted.state_dict().keys() == original.state_dict().keys()
    for name, weight in original.state_dict().items():
        assert torch.equal(converted.state_dict()[name], weight), name
    tied = converted.lm_head.weight is converted.model.embed_tokens.weight
    assert tied == case.startswith("tied")
    tokens = AutoTokenizer.from_pretrained(output)("2+3-1=?", return_tensors="pt").input_ids
    assert AutoTokenizer.from_pretrained(output).decode(tokens[0]) == "2+3-1=?"
    with torch.no_grad():
        assert torch.equal(converted(tokens).logits, original(tokens).logits)
    assert [path.name for path in output.parent.iterdir()] == ["model"]


def test_takes_the_latest_of_a_run(actor: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    torch.save({}, actor.parent / "data.pt")
    (checkpoints / TRACKER).write_text("3")
    assert [find_actor(path) for path in (tmp_path, checkpoints, actor.parent, actor)] == [actor] * 4


def test_finds_what_was_set_aside(actor: Path, tmp_path: Path) -> None:
    """A run that was killed while it wrote its latest step anew."""
    torch.save({}, actor.parent / "data.pt")
    (tmp_path / "checkpoints" / TRACKER).write_text("3")
    CheckpointFolder(tmp_path / "checkpoints").set_aside(3)
    actor.mkdir(parents=True)  # half of the new one
    found = find_actor(tmp_path)
    assert found != actor
    check_actor(found)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        convert(tmp_path / "nowhere", tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=f"no checkpoint: .*{TRACKER}"):
        convert(tmp_path, tmp_path / "model")


@pytest.mark.parametrize(
    "name",
    [
        "fsdp_config.json",
        "model_world_size_2_rank_1.pt",
        "huggingface/config.json",
        "huggingface/tokenizer_config.json",
    ],
)
def test_names_what_is_missing(actor: Path, name: str, tmp_path: Path) -> None:
    (actor / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        convert(actor.parent, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["fsdp_config.json", "model_world_size_2_rank_1.pt"])
def test_names_what_is_cut_off(actor: Path, name: str) -> None:
    whole = (actor / name).read_bytes()
    (actor / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name):
        check_actor(actor)


def test_writes_over_nothing(actor: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="model exists already"):
        convert(actor.parent, tmp_path / "model")


def test_a_failure_on_the_way_leaves_nothing(actor: Path, tmp_path: Path) -> None:
    # Read last, when the weights are written.
    (actor / "huggingface/tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        convert(actor.parent, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


SIGNALLED = """
import os, signal, sys, time
from gtpo_verl import cli
from gtpo_verl.run_folder import conversion
merge = conversion._merge
def merge_then_wait(actor, target):
    merge(actor, target)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
conversion._merge = merge_then_wait
sys.exit(cli.main(["convert", *sys.argv[1:]]))
"""


def test_stopped_on_the_way_leaves_nothing(actor: Path, tmp_path: Path) -> None:
    (tmp_path / "model.part").mkdir()  # of one that was killed
    command = [sys.executable, "-c", SIGNALLED, str(actor.parent), str(tmp_path / "model")]
    result = subprocess.run(command, cwd=tmp_path / "checkpoints", capture_output=True, text=True, timeout=240)
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gtpo_verl.cli", "convert", str(tmp_path / "nowhere"), str(tmp_path / "model")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path / 'nowhere'}: no such folder\n"


def test_weights_that_are_one_and_were_trained_apart_are_refused(saved: Path, tmp_path: Path) -> None:
    """As by an adapter of the output layer; transformers would write the embedding for both."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from gtpo_verl.run_folder.conversion import _check_names

    config = AutoConfig.from_pretrained(saved / "tied")
    weights = AutoModelForCausalLM.from_pretrained(saved / "tied").state_dict()
    _check_names(weights, AutoModelForCausalLM, config, tmp_path)
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    with pytest.raises(ValueError, match=r"lm_head\.weight and model\.embed_tokens\.weight differ"):
        _check_names(weights, AutoModelForCausalLM, config, tmp_path)


class Harm:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("case", ["untied-fsdp2", "untied-fsdp", "adapter-fsdp2"])
@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_in_a_shard_is_run(saved: Path, tmp_path: Path, case: str, rank: int) -> None:
    run = adapted_run(saved, tmp_path, case, lora_alpha=10)
    shard = run / f"checkpoints/global_step_1/actor/model_world_size_2_rank_{rank}.pt"
    torch.save({**torch.load(shard, weights_only=False), "z": Harm(tmp_path / "harm")}, shard)
    with pytest.raises(ValueError, match=rf"rank_{rank}\.pt: more than weights"):
        convert(run / "checkpoints/global_step_1", tmp_path / "model")
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "model").exists()


ADAPTERS = ["adapter-fsdp2", "adapter-fsdp", "adapter-tied", "adapter-of-some", "adapter-alone"]


def put_config(case: Path, **model) -> None:
    """`config.yaml` of the run, where a run's checkpoints lie: two folders above `actor`."""
    case.mkdir(exist_ok=True)
    (case / "config.yaml").write_text(json.dumps({"actor_rollout_ref": {"model": model}}))


def adapted_run(saved: Path, folder: Path, case: str, **model) -> Path:
    """A run's folder with this actor's checkpoint in it, and a configuration."""
    run = folder / "run"
    shutil.copytree(saved / case / "global_step_1", run / "checkpoints/global_step_1")
    put_config(run, **model)
    return run


def by_hand(saved: Path, case: str, alpha: float) -> dict[str, torch.Tensor]:
    """W + alpha / r B A of every weight, in fp32, from the shards."""
    from transformers import AutoModelForCausalLM

    actor = saved / case / "global_step_1/actor"
    shards = [torch.load(actor / f"model_world_size_2_rank_{rank}.pt", weights_only=False) for rank in range(2)]
    whole = {
        name: torch.cat([shard[name].to_local() for shard in shards], dim=shards[0][name].placements[0].dim)
        for name in shards[0]
    }
    base = AutoModelForCausalLM.from_pretrained(
        saved / ("tied" if case == "adapter-tied" else "untied"), dtype=torch.float32
    )
    expected = dict(base.state_dict())
    adapters = {name for name in whole if "lora_A" in name}
    assert adapters
    for name in adapters:
        a, b = whole[name], whole[name.replace("lora_A", "lora_B")]
        key = name.removeprefix("base_model.model.").replace(".lora_A.default.weight", ".weight")
        expected[key] = expected[key] + alpha / a.shape[0] * (b @ a)
    return expected


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_is_in_the_weights(saved: Path, tmp_path: Path, case: str) -> None:
    from transformers import AutoModelForCausalLM

    base = saved / ("tied" if case == "adapter-tied" else "untied")
    run = adapted_run(saved, tmp_path, case, path=str(base), lora_rank=4, lora_alpha=10)
    output = convert(run / "checkpoints/global_step_1", tmp_path / "model")
    converted = AutoModelForCausalLM.from_pretrained(output, dtype="auto").state_dict()
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).state_dict()
    expected = by_hand(saved, case, alpha=10)
    assert converted.keys() == expected.keys()
    adapted = {name for name, weight in converted.items() if not torch.equal(weight, before[name])}
    assert len(adapted) == (2 * 2 if case == "adapter-of-some" else 2 * 7)
    for name, weight in converted.items():
        # Rounded once: half a unit in the last of bfloat16's 8 digits.
        torch.testing.assert_close(weight.float(), expected[name], rtol=2**-8, atol=1e-6)
    assert not (output / "lora_adapter").exists()


@pytest.mark.parametrize("written", [None, 0, 10])
def test_what_an_adapter_is_scaled_by_is_never_guessed(
    saved: Path, tmp_path: Path, written: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """verl writes 0, or nothing, where it does not know; and cuts 10.5 to 10."""
    from transformers import AutoModelForCausalLM

    run = adapted_run(saved, tmp_path, "adapter-fsdp2", lora_rank=4, lora_alpha=10.5)
    meta = run / "checkpoints/global_step_1/actor/lora_train_meta.json"
    meta.unlink() if written is None else meta.write_text(json.dumps({"r": 4, "lora_alpha": written}))
    output = convert(run / "checkpoints/global_step_1", tmp_path / "model")
    converted = AutoModelForCausalLM.from_pretrained(output, dtype="auto").state_dict()
    for name, weight in by_hand(saved, "adapter-fsdp2", alpha=10.5).items():
        torch.testing.assert_close(converted[name].float(), weight, rtol=2**-8, atol=1e-6)

    assert "scaled by" not in capsys.readouterr().err
    (run / "config.yaml").unlink()
    if written:  # as of a run with `lora_adapter_path`, of whose `use_rslora` nothing is written
        convert(run / "checkpoints/global_step_1", tmp_path / "other")
        said = capsys.readouterr().err
        assert f"no configuration of the run in {run / 'config.yaml'}: its adapter is scaled by" in said
        assert "lora_alpha / rank = 10 / 4" in said
        assert "lora_adapter_path" in said
        return
    with pytest.raises(ValueError, match=r"lora_train_meta\.json: .*lora_alpha"):
        convert(run / "checkpoints/global_step_1", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"lora_alpha": "x"}'])
def test_a_damaged_scale_is_named(saved: Path, tmp_path: Path, content: str) -> None:
    run = adapted_run(saved, tmp_path, "adapter-fsdp2", lora_alpha=10)
    (run / "checkpoints/global_step_1/actor/lora_train_meta.json").write_text(content)
    with pytest.raises(ValueError, match=r"lora_train_meta\.json: "):
        convert(run / "checkpoints/global_step_1", tmp_path / "model")


def test_an_adapter_alone_needs_the_model_under_it(saved: Path, tmp_path: Path) -> None:
    for given in ({}, {"path": str(tmp_path / "nowhere")}):
        run = adapted_run(saved, tmp_path / str(len(given)), "adapter-alone", lora_alpha=10, **given)
        with pytest.raises(FileNotFoundError, match=r"actor_rollout_ref\.model\.path.* is not there"):
            convert(run / "checkpoints/global_step_1", tmp_path / "model")


@pytest.mark.parametrize("change", ["one missing", "one too many", "another shape"])
def test_weights_that_are_not_the_models_are_refused(actor: Path, tmp_path: Path, change: str) -> None:
    """transformers would leave them out, or make them up."""
    for shard in actor.glob("model_world_size_2_rank_*.pt"):
        weights = torch.load(shard, weights_only=False)
        name = "model.layers.1.mlp.up_proj.weight"
        if change == "one too many":
            weights["model.layers.1.mlp.side_proj.weight"] = weights[name]
        elif change == "one missing":
            del weights[name]
        else:
            weights[name] = weights["model.embed_tokens.weight"]
        torch.save(weights, shard)
    with pytest.raises(ValueError, match=r"the weight model\.layers\.1\.mlp\.(up|side)_proj\.weight is "):
        convert(actor.parent, tmp_path / "model")
    assert not (tmp_path / "model").exists()
