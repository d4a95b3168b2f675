"""One rank of test_engine.py: runs verl's real FSDP engine on gloo over a list of cases and saves what came out.

usage: engine_process.py FOLDER RANK WORLD_SIZE   (FOLDER holds cases.pt and model folders, and takes RANK.pt)

A process of its own because verl fixes its platform and devices when it is imported.
"""

import functools
import os
import sys
import time
from types import SimpleNamespace

import torch

folder, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ.update(VERL_PLATFORM="cpu", RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))

from gtpo_verl.configuration.preparation import engine_environment  # noqa: E402
from gtpo_verl.verl_plugin import engine as plugin  # noqa: E402
from gtpo_verl.verl_plugin import hooks  # noqa: E402

hooks.install()
plugin.register_engines()

from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402


def jagged(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def batch(case):
    """Responses of unlike lengths, as verl's no-padding format has them; every rank holds its share."""
    generator = torch.Generator().manual_seed(7)
    lengths = case.get("lengths", [9, 5, 14, 6, 11, 5, 8, 12])
    rows = [torch.randint(0, case["vocabulary"], (n,), generator=generator) for n in lengths]
    data_parallel = world_size // case.get("sp", 1)
    share = rank // case.get("sp", 1)
    order = case.get("order", range(len(rows)))
    rows = [rows[i] for i in order][share::data_parallel]
    temperature = case.get("temperature", 1.0)
    if isinstance(temperature, list):
        temperature = torch.tensor([temperature[i] for i in order][share::data_parallel])
    tensors = {
        "input_ids": jagged(rows),
        "position_ids": jagged(torch.arange(len(row)) for row in rows),
        "loss_mask": jagged(torch.arange(len(row)) >= 2 for row in rows),
        "temperature": temperature,
    }
    settings = {
        "use_remove_padding": case.get("remove_padding", True),
        "use_dynamic_bsz": "micro_batch" not in case,
        "max_token_len_per_gpu": case.get("tokens", 40),
        "micro_batch_size_per_gpu": case.get("micro_batch", 2),
        "use_fused_kernels": case.get("fused_kernels", False),
        "calculate_entropy": case.get("entropy", True),
        "global_batch_size": len(lengths),
        "return_model_output": True,
        **case.get("flags", {}),
    }
    tensors, floats = (
        {k: v for k, v in tensors.items() if not isinstance(v, float)},
        {k: v for k, v in tensors.items() if isinstance(v, float)},
    )
    return tu.get_tensordict(tensors, {**settings, **floats})


def make_engine(case):
    os.environ.pop("VERL_ENGINE_VENDOR", None)
    if case["ours"]:
        os.environ.update(engine_environment(fused_entropy=True))
    model = HFModelConfig(
        path=f"{folder}/{case['model']}",
        load_tokenizer=False,
        override_config={"attn_implementation": "sdpa"},
        use_remove_padding=case.get("remove_padding", True),
        enable_gradient_checkpointing=case.get("checkpointing", True),
        use_fused_kernels=case.get("fused_kernels", False),
        lora_rank=case.get("lora", 0),
        fused_kernel_options={"impl_backend": "torch"},
    )
    settings = FSDPEngineConfig(
        strategy=case.get("strategy", "fsdp2"),
        model_dtype="fp32",
        use_torch_compile=False,
        ulysses_sequence_parallel_size=case.get("sp", 1),
        mixed_precision={"param_dtype": case.get("dtype", "fp32"), "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    engine = EngineRegistry.new(
        "language_model",
        settings.strategy,
        model_config=model,
        engine_config=settings,
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10, lr_warmup_steps=0),
        checkpoint_config=CheckpointConfig(),
    )
    torch.manual_seed(0)  # a LoRA adapter is drawn here
    engine.initialize()
    return engine


def loss(model_output, data, dp_group=None, config=None):
    """A policy-gradient-like sum over response tokens, with an entropy bonus where the case has one."""
    flags = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk")
    seen.append((sorted(data.keys()), {name: tu.get_non_tensor_data(data, name, None) for name in flags}))
    mask = torch.roll(data["loss_mask"].values(), -1, 0)
    weight = torch.linspace(-1, 1, mask.numel())
    total = (model_output["log_probs"].values() * weight * mask).sum()
    if config.entropy_coeff:
        total = total + config.entropy_coeff * (model_output["entropy"].values() * mask).sum()
    return total, {}


# Of each micro-batch that the loss was given: its keys, and the flags that an engine might change.
seen: list[tuple] = []


def run(case):
    engine = make_engine(case)
    config = SimpleNamespace(entropy_coeff=case.get("entropy_coeff", 0.0))
    result = {"class": type(engine).__name__, "base": type(engine).__mro__[2].__name__}
    result["batches"] = tu.index_select_tensor_dict.__module__
    with engine.eval_mode():
        started = time.perf_counter()
        old = engine.infer_batch(batch(case))["model_output"]
        result["seconds"] = time.perf_counter() - started
    update = {**case, **case.get("update", {})}
    seen.clear()
    with engine.train_mode():
        new = engine.forward_backward_batch(batch(update), functools.partial(loss, config=config))
        gradients = {}
        for name, parameter in engine.module.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                gradients[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()
    result["old"] = {k: v.values().clone() for k, v in old.items()}
    result["new"] = {k: v.values().clone() for k, v in new["model_output"].items()}
    result["input_ids"] = batch(case)["input_ids"].values()
    result["loss"] = sum(new["loss"])
    result["gradients"] = gradients
    result["seen by the loss"] = list(seen)
    return result


def start():
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("cpu:gloo", init_method=store, rank=rank, world_size=world_size)


if __name__ == "__main__":
    start()
    results = {}
    for name, case in torch.load(f"{folder}/cases.pt").items():
        try:
            results[name] = run(case)
        except Exception as error:  # the other cases still have something to say
            import traceback

            results[name] = {"error": f"{error!r}\n{traceback.format_exc()}"}
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()
