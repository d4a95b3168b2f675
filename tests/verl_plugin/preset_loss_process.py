"""The process of test_preset_losses.py: verl's own `ppo_loss` in one real FSDP2 engine, once for every case.

usage: preset_loss_process.py FOLDER 0 1   (FOLDER holds cases.pt and a model, and takes results.pt)
"""

import functools

import torch
from engine_process import folder, jagged, make_engine, start
from omegaconf import OmegaConf
from verl.utils import omega_conf_to_dataclass
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from gtpo_verl.algorithms import ForkingConfig, forking_tokens


def batch(rows, micro_batch):
    """As TransferQueue hands it to the engine; `rows` hold tensors of their tokens."""
    tensors = {name: jagged(row[name] for row in rows) for name, values in rows[0].items() if values.dim() == 1}
    tensors["input_ids"] = jagged(torch.cat([row["prompts"], row["responses"]]) for row in rows)
    tensors["position_ids"] = jagged(torch.arange(len(row["prompts"]) + len(row["responses"])) for row in rows)
    tensors["response_mask"] = jagged(torch.ones(len(row["responses"]), dtype=torch.int64) for row in rows)
    tensors["loss_mask"] = tensors["response_mask"]
    settings = {
        "use_remove_padding": True,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": micro_batch,
        "use_fused_kernels": False,
        "calculate_entropy": True,
        "global_batch_size": len(rows),
        "return_model_output": True,
        "temperature": 1.0,
    }
    return tu.get_tensordict(tensors, settings)


def log_probs_and_entropies(engine, rows):
    data = batch(rows, len(rows))
    with engine.eval_mode():
        output = engine.infer_batch(data)["model_output"]
    return [response_from_nested(output[name], data["response_mask"]).unbind() for name in ("log_probs", "entropy")]


def restricted(rows, entropy, share):
    """The rows with the advantages of the forking tokens of all of them."""
    lengths = torch.tensor([len(row) for row in entropy])
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    kept = forking_tokens(torch.cat(entropy), offsets, ForkingConfig(share)).split(lengths.tolist())
    return [{**row, "advantages": row["advantages"] * keep} for row, keep in zip(rows, kept, strict=True)]


def run(engine, rows, actor, micro_batch):
    config = omega_conf_to_dataclass(OmegaConf.create(actor))
    with engine.train_mode():
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(batch(rows, micro_batch), functools.partial(ppo_loss, config=config))
        gradients = {name: p.grad.full_tensor() for name, p in engine.module.named_parameters()}
    return {"loss": sum(output["loss"]), "gradients": gradients}


if __name__ == "__main__":
    start()
    given = torch.load(f"{folder}/cases.pt", weights_only=False)
    engine = make_engine({"model": "untied", "ours": True})
    log_probs, entropy = log_probs_and_entropies(engine, given["rows"])
    rows = [
        {
            **row,
            "old_log_probs": log_prob + row["moved"],
            "ref_log_prob": log_prob + row["since_the_reference"],
            "advantages": row["advantage"].expand(len(log_prob)).clone(),
        }
        for row, log_prob in zip(given["rows"], log_probs, strict=True)
    ]
    results = {}
    for name, case in given["cases"].items():
        of_case = restricted(rows, entropy, case["share"])
        for micro_batch in given["micro_batches"]:
            results[name, micro_batch] = run(engine, of_case, case["actor"], micro_batch)
    torch.save(results, f"{folder}/results.pt")
    torch.distributed.destroy_process_group()
