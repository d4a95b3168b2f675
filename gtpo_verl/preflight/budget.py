"""The memory formulas put together: each phase of a step on a GPU, a node's memory, the disk; against what there is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from omegaconf import DictConfig

from gtpo_verl.configuration.checks import checkpoints_to_keep, validates_only
from gtpo_verl.preflight import memory
from gtpo_verl.preflight.architecture import ModelShape
from gtpo_verl.preflight.findings import Finding, Status
from gtpo_verl.preflight.memory import GIB
from gtpo_verl.preflight.sizes import (
    LOG_PROB_BATCH,
    UPDATE_BATCH,
    VERL_DTYPES,
    VLLM_DTYPES,
    gpu_share,
    micro_batch_key,
    micro_batch_tokens,
    sharding_ranks,
)

# CUDA context, NCCL's buffers and cuBLAS workspaces of one process; a round figure, not derived.
OVERHEAD = 2 * GIB
# What vLLM takes at the most where `max_num_batched_tokens` is null.
_VLLM_TOKENS = 16384
# The formulas leave out the allocator's fragmentation: above this share it may or may not fit.
_TIGHT = 0.9

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_CHECKPOINTING = f"{_MODEL}.enable_gradient_checkpointing"
_PARAM_OFFLOAD = f"{_ACTOR}.fsdp_config.param_offload"
_OPTIMIZER_OFFLOAD = f"{_ACTOR}.fsdp_config.optimizer_offload"


@dataclass(frozen=True)
class Phase:
    """What lies on one GPU at a phase's peak.

    Attributes:
        parts: bytes by what they hold.
        keys: by part, the configuration key that makes it smaller.
    """

    name: str
    parts: Mapping[str, int]
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def key_to_change(self) -> str:
        """The key of the largest part that has one."""
        return self.keys[max(self.keys, key=lambda part: self.parts.get(part, 0))]

    def describe(self) -> str:
        return " + ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts.items() if size)


def training_state(config: DictConfig, shape: ModelShape) -> dict[str, int]:
    """Bytes of one rank's `weights`, `gradients` and `optimizer`, wherever they lie."""
    ranks, dtype = sharding_ranks(config), _bytes(config.actor_rollout_ref.actor.fsdp_config.model_dtype, 4)
    trained = _trained(config, shape)
    return {
        "weights": memory.weights(shape.parameters, ranks, dtype),
        "gradients": memory.gradients(trained, ranks, dtype),
        "optimizer": memory.optimizer(trained, ranks, dtype),
    }


def _trained(config: DictConfig, shape: ModelShape) -> int:
    """Parameters with a gradient; none where LoRA freezes them, whose adapters are left out."""
    return 0 if config.actor_rollout_ref.model.get("lora_rank") else shape.parameters


def _on_gpu(config: DictConfig, shape: ModelShape) -> dict[str, int]:
    """The training state while it is used; nothing with FSDP2's own offloading, which brings a layer at a time."""
    state = training_state(config, shape)
    return dict.fromkeys(state, 0) if _offload_policy(config) else state


def _offload_policy(config: DictConfig) -> bool:
    actor = config.actor_rollout_ref.actor
    return actor.strategy == "fsdp2" and bool(actor.fsdp_config.get("offload_policy"))


def _gathered(config: DictConfig, shape: ModelShape) -> int:
    compute, _ = _compute_bytes(config)
    if config.actor_rollout_ref.actor.fsdp_config.get("reshard_after_forward", True):
        return memory.gathered(shape, compute)
    return memory.weights(shape.parameters, 1, compute)


def log_prob_phase(config: DictConfig, shape: ModelShape) -> Phase:
    """The pass over all responses that gives old log-probabilities and entropies."""
    actor = config.actor_rollout_ref.actor
    state, (compute, _) = _on_gpu(config, shape), _compute_bytes(config)
    tokens, key = micro_batch_tokens(config, LOG_PROB_BATCH), micro_batch_key(config, LOG_PROB_BATCH)
    parts = {
        "weights": state["weights"],
        "optimizer": 0 if actor.fsdp_config.optimizer_offload else state["optimizer"],
        "gathered layers": _gathered(config, shape),
        # No layer is at work any more when the logits are there.
        **_larger(
            {"one layer": memory.layer_activations(shape, tokens, compute)},
            {"logits": memory.logits(shape, tokens, compute, config.gtpo_verl.fused_entropy)},
        ),
    }
    keys = {"one layer": key, "logits": key, "weights": "trainer.nnodes"}
    return Phase("log-prob", parts, {**keys, "optimizer": _OPTIMIZER_OFFLOAD})


def update_phase(config: DictConfig, shape: ModelShape) -> Phase:
    """Forward, backward and optimizer step of the actor; offloaded state is back on the GPU for it."""
    actor = config.actor_rollout_ref.actor
    checkpointing = config.actor_rollout_ref.model.enable_gradient_checkpointing
    # With an entropy in the loss, verl's own path over the logits runs beside ours.
    fused = config.gtpo_verl.fused_entropy and not actor.entropy_coeff
    compute, reduce = _compute_bytes(config)
    tokens, key = micro_batch_tokens(config, UPDATE_BATCH), micro_batch_key(config, UPDATE_BATCH)
    frozen = not _trained(config, shape)
    at_the_head = {
        "activations": memory.saved_activations(shape, tokens, compute, checkpointing),
        "logits": memory.logits(shape, tokens, compute, fused),
        "head gradient": 0 if frozen else memory.head_gradient(shape, compute),
    }
    in_a_layer = {
        "activations": memory.activations(shape, tokens, compute, checkpointing),
        "backward": memory.backward_buffers(shape, tokens, compute),
        "reduced gradient": 0 if frozen else memory.reduced_gradient(shape, reduce),
    }
    parts = {
        **_on_gpu(config, shape),
        "gathered layers": _gathered(config, shape),
        **_larger(at_the_head, in_a_layer),
    }
    keys = {
        "activations": key if checkpointing else _CHECKPOINTING,
        "logits": key,
        "weights": "trainer.nnodes",
        "optimizer": "trainer.nnodes",
    }
    return Phase("update", parts, keys)


def rollout_phase(config: DictConfig, shape: ModelShape, vllm: int) -> Phase:
    """vLLM samples; the training state stays where it is not offloaded.

    Args:
        vllm: bytes that vLLM takes, all of its share from its start.
    """
    fsdp, rollout = config.actor_rollout_ref.actor.fsdp_config, config.actor_rollout_ref.rollout
    state = _on_gpu(config, shape)
    parts = {
        "vLLM": vllm,
        "weights": 0 if fsdp.param_offload else state["weights"],
        "optimizer": 0 if fsdp.optimizer_offload else state["optimizer"],
        "weight transfer": rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20,
    }
    keys = {"vLLM": f"{_ROLLOUT}.gpu_memory_utilization", "weights": _PARAM_OFFLOAD, "optimizer": _OPTIMIZER_OFFLOAD}
    return Phase("rollout", parts, keys)


def phases(config: DictConfig, shape: ModelShape, gpu_bytes: int) -> list[Phase]:
    """Rollout, log-prob and update on a GPU of this size, which vLLM keeps its share of unless told not to."""
    rollout = config.actor_rollout_ref.rollout
    vllm = int(gpu_share(config) * gpu_bytes)
    training = [log_prob_phase(config, shape), update_phase(config, shape)]
    if not rollout.free_cache_engine:
        training = [
            replace(
                phase,
                parts={**phase.parts, "vLLM": vllm},
                keys={**phase.keys, "vLLM": f"{_ROLLOUT}.free_cache_engine"},
            )
            for phase in training
        ]
    return [_with_overhead(phase) for phase in (rollout_phase(config, shape, vllm), *training)]


def check_gpu_memory(config: DictConfig, shape: ModelShape, gpu_bytes: int | None, where: str) -> list[Finding]:
    """One finding a phase, and one on vLLM's KV cache.

    Args:
        gpu_bytes: memory of the smallest GPU; None where it is not known: then the needs are shown, unjudged.
        where: the node with that GPU.
    """
    if gpu_bytes is None:
        needs = [_with_overhead(phase(config, shape)) for phase in (log_prob_phase, update_phase)]
        return [
            *(
                Finding(
                    f"GPU memory, {phase.name}",
                    Status.UNKNOWN,
                    f"needs {phase.total / GIB:.1f} GiB a GPU: {phase.describe()}",
                    where,
                )
                for phase in needs
            ),
            check_kv_cache(config, shape, None, where),
        ]
    findings = []
    for phase in phases(config, shape, gpu_bytes):
        status = _judge(phase.total, gpu_bytes)
        detail = f"{phase.total / GIB:.1f} of {gpu_bytes / GIB:.1f} GiB: {phase.describe()}"
        key = "" if status is Status.OK else phase.key_to_change
        findings.append(Finding(f"GPU memory, {phase.name}", status, detail, where, key))
    return [*findings, check_kv_cache(config, shape, gpu_bytes, where)]


def check_kv_cache(config: DictConfig, shape: ModelShape, gpu_bytes: int | None, where: str) -> Finding:
    """How many tokens' keys and values fit beside vLLM's weights. vLLM refuses less than one longest sequence."""
    rollout = config.actor_rollout_ref.rollout
    tensor_parallel, dtype = rollout.tensor_model_parallel_size, _bytes(rollout.dtype, 2)
    weights = memory.weights(shape.parameters, tensor_parallel, dtype)
    batched, sequences = rollout.max_num_batched_tokens or _VLLM_TOKENS, rollout.max_num_seqs
    buffers = memory.rollout_buffers(shape, batched, sequences, tensor_parallel, dtype)
    token = memory.kv_cache_token(shape, tensor_parallel, dtype)
    longest = rollout.max_model_len or shape.max_position_embeddings
    if gpu_bytes is None:
        detail = (
            f"vLLM's weights {weights / GIB:.1f} + buffers {buffers / GIB:.1f} GiB a GPU, then "
            f"{longest * token / GIB:.2f} for each sequence of {longest} tokens"
        )
        return Finding("KV cache", Status.UNKNOWN, detail, where)
    free = int(gpu_share(config) * gpu_bytes) - weights - buffers
    tokens = max(free, 0) // token
    detail = f"{tokens} tokens fit beside vLLM's weights; the longest sequence has {longest}"
    if tokens < longest:
        change = "tensor_model_parallel_size" if free <= 0 else "gpu_memory_utilization"
        return Finding("KV cache", Status.FAIL, detail, where, f"{_ROLLOUT}.{change}")
    # Sequences are rarely all of full length: vLLM queues or preempts those that find no room.
    together = min(tokens // longest, sequences)
    return Finding("KV cache", Status.OK, f"{detail}: {together} of them at a time", where)


def host_memory(config: DictConfig, shape: ModelShape) -> dict[str, int]:
    """Bytes of one node's memory: what offloading keeps there, and the whole model while it is loaded.

    verl loads the whole model in `model_dtype`: on one rank where the embeddings are not tied, on every rank where
    they are (`verl/utils/fsdp_utils.py`, `get_init_weight_context_manager`).
    """
    fsdp, gpus = config.actor_rollout_ref.actor.fsdp_config, config.trainer.n_gpus_per_node
    state, everything = training_state(config, shape), _offload_policy(config)
    penalised = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return {
        "loading": _bytes(fsdp.model_dtype, 4) * shape.parameters * (gpus if shape.tied else 1),
        "offloaded weights": gpus * state["weights"] if everything or fsdp.param_offload else 0,
        "offloaded gradients": gpus * state["gradients"] if everything else 0,
        "offloaded optimizer": gpus * state["optimizer"] if everything or fsdp.optimizer_offload else 0,
        # verl always keeps it there, a layer at a time on the GPU; LoRA's is the actor without adapters.
        "reference model": gpus * state["weights"] if penalised and _trained(config, shape) else 0,
    }


def check_host_memory(config: DictConfig, shape: ModelShape, total: int | None, where: str) -> Finding:
    """The larger of loading (at the start) and offloaded state (later) against a node's memory."""
    parts = host_memory(config, shape)
    needed = max(parts["loading"], sum(parts.values()) - parts["loading"])
    listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    if total is None:
        return Finding("node memory", Status.UNKNOWN, f"needs {needed / GIB:.1f} GiB a node: {listed}", where)
    status = _judge(needed, total)
    key = "trainer.n_gpus_per_node" if needed == parts["loading"] else _OPTIMIZER_OFFLOAD
    detail = f"{needed / GIB:.1f} of {total / GIB:.1f} GiB: {listed}"
    return Finding("node memory", status, detail, where, "" if status is Status.OK else key)


def checkpoint_bytes(
    config: DictConfig, shape: ModelShape, resumed: int = 0, present: int = 0
) -> tuple[int, int | None]:
    """Size of one checkpoint, and how many are added to those on disk at most; None: as many as are saved, a number
    not known.

    The oldest goes once the next is whole (`run_folder/checkpoints.py`), so one more than are kept.

    Args:
        resumed: the step that the run goes on from.
        present: whole checkpoints that lie there, up to that step: they are among those that are kept or go.
    """
    actor, trainer = config.actor_rollout_ref.actor, config.trainer
    dtype = _bytes(actor.fsdp_config.model_dtype, 4)
    contents = actor.checkpoint.save_contents or ["model", "optimizer", "extra"]  # null: verl's default
    contents = [contents] if isinstance(contents, str) else list(contents)
    if not _trained(config, shape):  # the adapters' moments are left out
        contents = [content for content in contents if content != "optimizer"]
    size = memory.checkpoint(shape.parameters, contents, dtype)
    if trainer.save_freq <= 0 or validates_only(config):
        return size, 0
    saved = None
    if trainer.total_training_steps is not None:
        saved = max(-(-trainer.total_training_steps // trainer.save_freq) - resumed // trainer.save_freq, 1)
    keep = checkpoints_to_keep(config)
    added = saved if keep is None else max(keep + 1 - present, 1)
    return size, added if saved is None else min(added, saved)


def check_checkpoint_space(
    config: DictConfig, shape: ModelShape, free: int | None, where: str, resumed: int = 0, present: int = 0
) -> Finding:
    """Free bytes under `trainer.default_local_dir` against all the checkpoints that will lie there at once, but for
    those that do already; `resumed` and `present` as in `checkpoint_bytes`."""
    what, key = "checkpoint space", "trainer.max_actor_ckpt_to_keep"
    size, count = checkpoint_bytes(config, shape, resumed, present)
    if count == 0:
        return Finding(what, Status.OK, "no checkpoints (trainer.save_freq, trainer.val_only)", where)
    needed = size * (count or 1)
    kept = f"{count} checkpoint(s)" if count else "the first of a number not known of checkpoints"
    beside = f" beside the {present} there" if present else ""
    detail = f"{needed / GIB:.1f} GiB for {kept} of {size / GIB:.1f} GiB{beside}"
    if free is None:
        return Finding(what, Status.UNKNOWN, detail, where)
    status = Status.FAIL if needed > free else Status.OK if count else Status.WARN
    return Finding(what, status, f"{detail}, {free / GIB:.1f} GiB free", where, "" if status is Status.OK else key)


def _larger(*moments: dict[str, int]) -> dict[str, int]:
    """The moment, of several that exclude each other, at which more memory is taken."""
    return max(moments, key=lambda parts: sum(parts.values()))


def _with_overhead(phase: Phase) -> Phase:
    return replace(phase, parts={**phase.parts, "overhead": OVERHEAD})


def _judge(needed: int, there: int) -> Status:
    return Status.FAIL if needed > there else Status.WARN if needed > _TIGHT * there else Status.OK


def _bytes(dtype: str | int | None, default: int) -> int:
    # `check_values` has refused what the library of the key does not know, but for null and auto.
    return {**VERL_DTYPES, **VLLM_DTYPES}.get(str(dtype), default)


def _compute_bytes(config: DictConfig) -> tuple[int, int]:
    """Bytes of the dtypes that FSDP2 computes and reduces gradients in; verl's defaults are bf16 and fp32."""
    mixed = config.actor_rollout_ref.actor.fsdp_config.get("mixed_precision") or {}
    return _bytes(mixed.get("param_dtype"), 2), _bytes(mixed.get("reduce_dtype"), 4)
