"""Log-prob pass, advantages and update of a training step on verl's real FSDP2 engine, stock and ours; no Ray, no vLLM.

    python benchmarks/engine_step.py --csv out.csv              # the figures of docs/performance.md, one GPU
    VERL_PLATFORM=cpu python benchmarks/engine_step.py --layers 2 --hidden 64 --heads 2 --kv-heads 1 \\
        --intermediate 128 --vocabulary 512 --prompts 8 --tokens 2048 1024     # the same on a CPU, seconds

A Llama of SmolLM2-135M's shape with random weights trains on random responses (64 prompts with 16 each): the times do
not depend on what they say. The methods take turns, round after round. verl takes flash-attn's cross-entropy where it
is importable and else a loop over tokens, so the stock engine is measured with each. Attention is PyTorch's flash
kernel for packed sequences of unlike lengths, what flash-attn would do, or (--attention sdpa) transformers' own, which
masks a whole micro-batch and so takes time quadratic in its tokens. With --seconds, a measurement that would no longer
end in time is left out; the table says how many there were.
"""

import argparse
import csv
import functools
import gc
import importlib.util
import inspect
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

GIB = 2**30
GROUP_SIZE = 16
PROMPT_TOKENS, RESPONSE_TOKENS = (40, 96), (20, 160)
LOOP, FLASH, OURS = "verl", "verl, flash-attn cross-entropy", "gtpo_verl"
DAPO, GTPO = "DAPO", "GTPO v2"
LOSSES = {DAPO: "vanilla", GTPO: "gtpo"}
# What a batch out of verl's agent loops carries beside tensors.
OBJECTS = ("uid", "raw_prompt", "prompt", "extra_info", "extra_fields", "reward_model", "metrics", "ability")
TEXTS = ("data_source", "index", "num_turns", "session_id", "tools_kwargs", "interaction_kwargs")

STARTED = time.perf_counter()


@dataclass
class Measurement:
    """Synchronised seconds of every run and the largest memory beyond what was allocated before it.

    What `prepare` makes, outside of the time, `run` is given.
    """

    run: Callable[..., Any]
    seconds: list[float] = field(default_factory=list)
    extra_gib: float = 0.0
    prepare: Callable[[], Any] | None = None

    def measure(self) -> None:
        prepared = () if self.prepare is None else (self.prepare(),)
        gc.collect()
        before = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        self.run(*prepared)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.extra_gib = max(self.extra_gib, (torch.cuda.max_memory_allocated() - before) / GIB)
        self.seconds.append(time.perf_counter() - started)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("nan")


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Batch:
    """Random prompts and responses, rewards of 0 or 1, as verl's no-padding format has them."""

    def __init__(self, prompts: int, vocabulary: int, response_tokens: tuple[int, int] = RESPONSE_TOKENS) -> None:
        generator = torch.Generator().manual_seed(7)

        def draw(low: int, high: int, count: int) -> list[int]:
            return torch.randint(low, high + 1, (count,), generator=generator).tolist()

        def tokens(lengths: list[int]) -> list[torch.Tensor]:
            return [torch.randint(0, vocabulary, (length,), generator=generator) for length in lengths]

        self.prompts = [row for row in tokens(draw(*PROMPT_TOKENS, prompts)) for _ in range(GROUP_SIZE)]
        self.responses = tokens(draw(*response_tokens, prompts * GROUP_SIZE))
        self.lengths = torch.tensor([len(response) for response in self.responses])
        self.success = torch.rand(len(self.responses), generator=generator) < 0.4
        self.group = torch.arange(prompts).repeat_interleave(GROUP_SIZE)

    def __len__(self) -> int:
        return len(self.responses)

    def head(self, count: int) -> "Batch":
        part = object.__new__(Batch)
        for name, values in vars(self).items():
            setattr(part, name, values[:count])
        return part

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) + int(self.lengths.sum())

    def tensordict(self, max_tokens: int, responses: dict[str, torch.Tensor] | None = None, **settings: Any) -> Any:
        """What an engine takes; `responses` are (response tokens,) each."""
        from verl.utils import tensordict_utils as tu

        rows = [torch.cat(pair) for pair in zip(self.prompts, self.responses, strict=True)]
        masks = [torch.ones(len(response), dtype=torch.long) for response in self.responses]
        tensors: dict[str, Any] = {
            "input_ids": jagged(rows),
            "position_ids": jagged([torch.arange(len(row)) for row in rows]),
            "prompts": jagged(self.prompts),
            "responses": jagged(self.responses),
            "response_mask": jagged(masks),
            "loss_mask": jagged(masks),
            **{name: jagged(list(flat.split(self.lengths.tolist()))) for name, flat in (responses or {}).items()},
        }
        common = {
            "temperature": 1.0,
            "use_remove_padding": True,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": max_tokens,
            "use_fused_kernels": False,
            "calculate_entropy": False,
        }
        # A batch out of verl's agent loop also carries these, an object a response.
        for name in OBJECTS:
            tensors[name] = [{name: str(i)} for i in range(len(rows))]
        for name in TEXTS:
            tensors[name] = [f"{name} {i}" for i in range(len(rows))]
        return tu.get_tensordict(tensors, {**common, **settings})

    def of_responses(self, values: torch.Tensor) -> torch.Tensor:
        """(tokens,) of an engine's output, one for each token's successor -> (response tokens,)."""
        ends = torch.tensor([len(p) + len(r) for p, r in zip(self.prompts, self.responses, strict=True)]).cumsum(0)
        parts = [
            values[end - length - 1 : end - 1] for end, length in zip(ends.tolist(), self.lengths.tolist(), strict=True)
        ]
        return torch.cat(parts)


class Method:
    """One engine with one way to log-probabilities."""

    def __init__(self, name: str, engine: Any, batch: Batch, options: argparse.Namespace) -> None:
        self.name, self.engine, self.batch, self.options = name, engine, batch, options

    def select(self) -> None:
        os.environ["VERL_DISABLE_FLASH_ATTN_CE"] = "0" if self.name == FLASH else "1"

    def log_probs(self, batch: Batch | None = None, max_tokens: int | None = None) -> dict[str, torch.Tensor]:
        """The trainer's log-prob pass: `log_probs` and `entropy`, (tokens,), on the CPU."""
        return self.pass_over(self.for_pass(batch, max_tokens))

    def for_pass(self, batch: Batch | None = None, max_tokens: int | None = None) -> Any:
        return (batch or self.batch).tensordict(max_tokens or self.options.tokens[0], calculate_entropy=True)

    def pass_over(self, data: Any) -> dict[str, torch.Tensor]:
        self.select()
        with self.engine.eval_mode():
            output = self.engine.infer_batch(data)["model_output"]
        return {name: output[name].values().cpu() for name in ("log_probs", "entropy")}

    def update(self, algorithm: str, values: dict[str, torch.Tensor], batch: Batch | None = None) -> None:
        """Forward, backward and optimizer step of every mini-batch, as verl's training worker runs them."""
        self.update_with(algorithm, self.for_update(values, batch))

    def for_update(self, values: dict[str, torch.Tensor], batch: Batch | None = None) -> Any:
        batch = batch or self.batch
        size = min(self.options.mini_batch, len(batch))
        return batch.tensordict(self.options.tokens[1], values, global_batch_size=size)

    def update_with(self, algorithm: str, data: Any) -> None:
        from verl.utils import tensordict_utils as tu

        self.select()
        size = tu.get_non_tensor_data(data=data, key="global_batch_size", default=None)
        with self.engine.train_mode():
            for part in tu.make_iterator(data, size, epochs=1, seed=1, dataloader_kwargs={"shuffle": False}):
                self.engine.train_batch(part, loss_function=policy_loss(algorithm))

    def largest_ratio_error(self, batch: Batch, max_tokens: int) -> float:
        """max |ratio - 1| of the update against a log-prob pass of `max_tokens`, with the policy unchanged."""
        old = self.log_probs(batch, max_tokens)["log_probs"]
        data = batch.tensordict(self.options.tokens[1], global_batch_size=len(batch), return_model_output=True)

        def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
            return model_output["log_probs"].values().sum(), {}

        with self.engine.train_mode():
            new = self.engine.forward_backward_batch(data, loss)["model_output"]["log_probs"].values().cpu()
            self.engine.optimizer_zero_grad()
        log_ratio = batch.of_responses(new.double()) - batch.of_responses(old.double())
        return float(torch.expm1(log_ratio).abs().max())


def policy_loss(algorithm: str) -> Callable[..., Any]:
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=GROUP_SIZE,
        use_dynamic_bsz=True,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=10.0,
        policy_loss=PolicyLossConfig(loss_mode=LOSSES[algorithm]),
    )
    return functools.partial(ppo_loss, config=config)


def make_engine(
    path: str,
    ours: bool,
    options: argparse.Namespace,
    checkpointing: bool = True,
    reshard: bool = True,
    layers_apart: bool = True,
) -> Any:
    """verl's FSDP2 engine with its defaults: fp32 weights, bf16 compute, gradient checkpointing, remove-padding.

    Args:
        checkpointing, reshard: `model.enable_gradient_checkpointing` and `fsdp_config.reshard_after_forward`.
        layers_apart: whether FSDP handles each layer by itself, as verl has it, or the model as one.
    """
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    from gtpo_verl.configuration.preparation import engine_environment

    os.environ.pop("VERL_ENGINE_VENDOR", None)
    os.environ.update(engine_environment(fused_entropy=ours))
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=path,
            load_tokenizer=False,
            override_config={"attn_implementation": options.attention},
            use_remove_padding=True,
            enable_gradient_checkpointing=checkpointing,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=not options.no_compile,
            reshard_after_forward=reshard,
            # A module without weights: verl wants one to be named.
            wrap_policy={} if layers_apart else {"transformer_layer_cls_to_wrap": ["LlamaRotaryEmbedding"]},
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-6, total_training_steps=1000, lr_warmup_steps=0),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


class PackedAttention:
    """transformers' attention interface for one packed row of sequences, with `torch.nn.attention.varlen` on a GPU."""

    def __init__(self) -> None:
        self.position_ids: torch.Tensor | None = None
        self.starts = torch.empty(0)

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        position_ids: torch.Tensor,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """(1, heads, tokens, dim) -> (1, tokens, heads, dim)."""
        if position_ids is not self.position_ids:  # once a micro-batch, not once a layer
            self.position_ids = position_ids
            first = (position_ids.view(-1) == 0).nonzero().view(-1)
            self.starts = torch.nn.functional.pad(first, (0, 1), value=position_ids.numel()).int()
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
        q, k, v = (each[0].transpose(0, 1).to(value.dtype).contiguous() for each in (query, key, value))
        attend = varlen_attention if query.is_cuda else attention_by_sequence
        return attend(q, k, v, self.starts, scaling).unsqueeze(0), None


def varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, scale: float | None
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest = PROMPT_TOKENS[1] + RESPONSE_TOKENS[1]
    # PyTorch 2.10 says it with a flag, later releases with a window.
    named = "is_causal" in inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"is_causal": True} if named else {"window_size": (-1, 0)}
    output: Any = varlen_attn(query, key, value, starts, starts, longest, longest, scale=scale, **causal)
    return output


def attention_by_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, scale: float | None
) -> torch.Tensor:
    parts = [each.transpose(0, 1).split(starts.diff().tolist(), dim=1) for each in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention
    outputs = [attend(q, k, v, is_causal=True, scale=scale) for q, k, v in zip(*parts, strict=True)]
    return torch.cat(outputs, dim=1).transpose(0, 1)


def check_attention() -> None:
    """Raises where `varlen_attention` and its gradient are not causal attention within each sequence."""
    torch.manual_seed(3)
    starts = torch.tensor([0, 70, 71, 200], dtype=torch.int32, device="cuda")
    q, k, v, weight = torch.randn(4, 200, 9, 64, device="cuda", dtype=torch.bfloat16).unbind()
    inputs = [each.detach().requires_grad_() for each in (q, k, v)]
    results = []
    for attend in (varlen_attention, attention_by_sequence):
        output = attend(inputs[0], inputs[1], inputs[2], starts, 0.125)
        results.append([output, *torch.autograd.grad(output, inputs, weight)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0.1, atol=0.1)


def write_model(path: str, options: argparse.Namespace) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(path)


def advantage_functions(batch: Batch, entropy: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """(response tokens,) each, on CPU; as in the trainer, verl's takes padded tensors and ours flat ones."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from gtpo_verl.algorithms import compute_advantages

    mask = torch.arange(int(batch.lengths.max())) < batch.lengths[:, None]
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(batch)), batch.lengths - 1] = batch.success.float()
    uids = np.array([str(group) for group in batch.group.tolist()], dtype=object)
    offsets = torch.nn.functional.pad(batch.lengths.cumsum(0), (1, 0))

    def grpo() -> torch.Tensor:
        return compute_grpo_outcome_advantage(rewards, mask, uids)[0][mask]

    def gtpo() -> torch.Tensor:
        return compute_advantages("gtpo_v2", entropy, offsets, batch.group, batch.success).advantages

    return {DAPO: grpo, GTPO: gtpo}


def set_up(folder: str) -> None:
    import gtpo_verl.verl_plugin.hooks

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    gtpo_verl.verl_plugin.hooks.install()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)


def say(text: str) -> None:
    print(f"[{time.perf_counter() - STARTED:6.1f} s] {text}", flush=True)


def run(folder: str, options: argparse.Namespace) -> None:
    set_up(folder)
    if options.attention == "varlen":
        from transformers import AttentionInterface

        if torch.cuda.is_available():
            check_attention()
        AttentionInterface.register("varlen", PackedAttention())
    write_model(folder, options)
    batch = Batch(options.prompts, options.vocabulary)
    few = batch.head(options.few)
    engines = {ours: make_engine(folder, ours, options) for ours in (False, True)}
    names = [OURS, LOOP]
    if torch.cuda.is_available() and importlib.util.find_spec("flash_attn"):
        names.insert(1, FLASH)
    methods = {name: Method(name, engines[name == OURS], batch, options) for name in names}
    say(f"{len(batch)} responses, {batch.tokens} tokens; engines {[type(m.engine).__name__ for m in methods.values()]}")

    # Compiles, fills caches and makes the optimizer's state; a few responses suffice for that. Ours goes last: the
    # entropies are its.
    estimates: dict[str, torch.Tensor] = {}
    for method in reversed(methods.values()):
        output = method.log_probs(few)
        estimates = {name: few.of_responses(values) for name, values in output.items()}
        values = {"old_log_probs": estimates["log_probs"], "advantages": torch.ones(int(few.lengths.sum()))}
        for algorithm in LOSSES:
            method.update(algorithm, values, few)
        say(f"warm: {method.name}")
    ratios = {}
    for name, method in methods.items():
        ratios[name] = [method.largest_ratio_error(few, max_tokens) for max_tokens in reversed(options.tokens)]
        say(f"max |ratio - 1| of {name}: equal micro-batches {ratios[name][0]:.2e}, unlike {ratios[name][1]:.2e}")

    old = {name: batch.of_responses(values) for name, values in methods[OURS].log_probs().items()}
    advantages = {name: Measurement(function) for name, function in advantage_functions(batch, old["entropy"]).items()}
    for measurement in advantages.values():
        for _ in range(2 * options.repeats):
            measurement.measure()
        del measurement.seconds[0]

    log_prob = {name: Measurement(method.log_probs) for name, method in methods.items()}
    update: dict[tuple[str, str], Measurement] = {}
    for name, method in methods.items():
        for algorithm in LOSSES:
            values = {"old_log_probs": old["log_probs"], "advantages": advantages[algorithm].run()}
            update[algorithm, name] = Measurement(functools.partial(method.update, algorithm, values))

    everything = [(name, f"log-prob pass, {name}", m) for name, m in log_prob.items()]
    everything += [(name, f"update, {algorithm}, {name}", m) for (algorithm, name), m in update.items()]
    # The loop over tokens takes several times as long as the rest together: it comes after all rounds of the others
    # where there is something else of verl's to take turns with.
    slow = {LOOP} if FLASH in methods else set()
    for names_of_turn in (set(methods) - slow, slow):
        turn = [(label, m) for name, label, m in everything if name in names_of_turn]
        # The first run at full size grows the allocator's pool: it is not counted, except for the loop.
        for round_ in range(options.repeats + (names_of_turn != slow)):
            for label, measurement in turn:
                expected = max(measurement.seconds, default=0.0)
                if time.perf_counter() - STARTED + expected > options.seconds:
                    continue
                if round_ == 0 and names_of_turn != slow:
                    measurement.run()
                    continue
                measurement.measure()
                say(f"{label}: {measurement.seconds[-1]:.3f} s, {measurement.extra_gib:.2f} GiB")
                report(batch, log_prob, advantages, update, ratios, options)
    print(markdown(report(batch, log_prob, advantages, update, ratios, options)))
    torch.distributed.destroy_process_group()


def report(
    batch: Batch,
    log_prob: dict[str, Measurement],
    advantages: dict[str, Measurement],
    update: dict[tuple[str, str], Measurement],
    ratios: dict[str, list[float]],
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The table so far, also written to the file: a run that is cut short leaves what it measured."""
    import tensordict
    import transformers
    import verl

    rows = []
    for (algorithm, name), updated in update.items():
        passed, advantage = log_prob[name], advantages[algorithm]
        row: dict[str, Any] = {
            "algorithm": algorithm,
            "engine": name,
            "responses": len(batch),
            "tokens": batch.tokens,
            "log_prob_s": passed.median,
            "log_prob_runs": len(passed.seconds),
            "log_prob_gib": passed.extra_gib,
            "advantage_s": advantage.median,
            "update_s": updated.median,
            "update_runs": len(updated.seconds),
            "update_gib": updated.extra_gib,
            "sum_s": passed.median + advantage.median + updated.median,
            "ratio_error_equal_micro_batches": ratios[name][0],
            "ratio_error_unlike_micro_batches": ratios[name][1],
            "log_prob_all_s": " ".join(f"{s:.4f}" for s in passed.seconds),
            "update_all_s": " ".join(f"{s:.4f}" for s in updated.seconds),
            "attention": options.attention,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "verl": verl.__version__,
            "tensordict": tensordict.__version__,
        }
        rows.append({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    columns = ["algorithm", "engine", *names[names.index("log_prob_s") : names.index("log_prob_all_s")]]
    lines = [columns, ["---"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = {"hidden": 576, "layers": 30, "heads": 9, "kv-heads": 3, "intermediate": 1536, "vocabulary": 49_152}
    sizes = {"prompts": 64, "mini-batch": 512, "repeats": 3}
    for name, default in {**shape, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--few", type=int, default=128, help="responses of the warm-up and of the check of ratios")
    parser.add_argument(
        "--tokens", type=int, nargs=2, default=[32_768, 16_384], help="a micro-batch's, log-prob pass and update"
    )
    parser.add_argument("--attention", choices=["varlen", "sdpa"], default="varlen")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which to start nothing more")
    parser.add_argument("--no-compile", action="store_true", help="verl's entropy eager instead of compiled")
    parser.add_argument("--csv")
    with tempfile.TemporaryDirectory() as folder:
        run(folder, parser.parse_args())


if __name__ == "__main__":
    main()
