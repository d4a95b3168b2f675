"""Sizes of a model without its weights, up to the published 32 billion parameters over 128 ranks."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config
from verl.utils.fsdp_utils import apply_fsdp2

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.preflight import memory
from gtpo_verl.preflight.architecture import published_shape, shape_of
from gtpo_verl.preflight.budget import training_state
from gtpo_verl.preflight.sizes import world_size

SIZES = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
QWEN_32B, QWEN_7B = 32_763_876_352, 7_615_616_512


@pytest.mark.parametrize(("scale", "parameters"), [("32b_16x8", QWEN_32B), ("32b_8x8", QWEN_32B), ("7b_1x8", QWEN_7B)])
def test_published_models_of_the_scales(scale: str, parameters: int) -> None:
    shape = published_shape(compose_config(["model=dapo_math", f"scale={scale}"]).gtpo_verl.architecture)
    assert shape.parameters == parameters
    assert not shape.tied


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """The last rank of a process group that has no other processes and computes nothing."""
    size = request.param
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=size - 1, world_size=size)
    yield size
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("ranks", "scale"), [(128, "32b_16x8"), (64, "32b_8x8")], indirect=["ranks"])
def test_32b_is_sharded_by_fsdp2_as_the_formula_says(ranks: int, scale: str) -> None:
    config = compose_config(["model=dapo_math", f"scale={scale}"])
    assert world_size(config) == ranks
    fields = dict(config.gtpo_verl.architecture)
    fields.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**fields))
    assert sum(p.numel() for p in model.parameters()) == QWEN_32B
    mesh = init_device_mesh("cpu", (ranks,))
    apply_fsdp2(model, {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(), "reshard_after_forward": True}, {})

    shards = [p.to_local() for p in model.parameters()]
    assert all(shard.is_meta for shard in shards)
    shape = published_shape(config.gtpo_verl.architecture)
    local = sum(shard.numel() for shard in shards)
    assert local == QWEN_32B // ranks  # every dimension divides: no rank holds padding
    assert training_state(config, shape) == {"weights": 4 * local, "gradients": 4 * local, "optimizer": 8 * local}
    # What FSDP2 gathers together: 64 layers, both embeddings, and the last norm with the root.
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    assert len(units) == shape.layers + 3
    embedding = 152_064 * 5_120
    assert (shape.largest_unit, shape.root) == (embedding, 5_120)
    assert memory.gathered(shape, 2) == 2 * (2 * embedding + 5_120)


@pytest.mark.parametrize("kind", [Qwen2Config, LlamaConfig])
@pytest.mark.parametrize("tied", [True, False])
def test_shape_is_the_real_models(kind: type, tied: bool) -> None:
    config = kind(**SIZES, **HEADS, tie_word_embeddings=tied)
    model, shape = AutoModelForCausalLM.from_config(config), shape_of(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    embedding, norm = 512 * 64, 64
    assert shape.root == norm + (embedding if tied else 0)
    assert shape.largest_unit == (layer if tied else max(layer, embedding))
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_size) == (3, 4, 2, 16)
    assert (shape.query_width, shape.key_width, shape.vocabulary) == (64, 32, 512)
    assert shape.max_position_embeddings == 128


@pytest.mark.parametrize(
    ("architecture", "named"),
    [
        ({"hidden_size": 64}, "gtpo_verl.architecture has no model_type"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": "vit"}, "ViTConfig"),
        ({"model_type": "gpt2"}, "GPT2Config.*intermediate_size"),
        ({"model_type": "qwen2_moe"}, "Qwen2MoeConfig.*experts"),
    ],
)
def test_what_has_no_formula_is_refused(architecture: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        published_shape(architecture)
