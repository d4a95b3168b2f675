"""Sizes that must fit each other: ranks, mini-batches, sequence lengths. Pure functions of the configuration.

verl and vLLM make these demands themselves, but only after the workers have loaded the model; what verl checks at the
start (`verl.utils.config.validate_config`) is not repeated.
"""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.preflight.findings import Finding, Status

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
COUNTS = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    f"{_ACTOR}.ppo_epochs",
    f"{_ACTOR}.ulysses_sequence_parallel_size",
    f"{_ACTOR}.ppo_mini_batch_size",
    f"{_ROLLOUT}.n",
    f"{_ROLLOUT}.val_kwargs.n",
    f"{_ROLLOUT}.agent.num_workers",
    f"{_ROLLOUT}.tensor_model_parallel_size",
    f"{_ROLLOUT}.data_parallel_size",
    f"{_ROLLOUT}.pipeline_model_parallel_size",
    f"{_ROLLOUT}.max_num_seqs",  # verl adds to it (`verl/workers/rollout/replica.py`), so that null is none
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
)
# A micro-batch's size: by the switch, the key that counts tokens (on) and the one that counts sequences (off).
UPDATE_BATCH, LOG_PROB_BATCH = f"{_ACTOR}.use_dynamic_bsz", f"{_ROLLOUT}.log_prob_use_dynamic_bsz"
MICRO_BATCHES = {
    UPDATE_BATCH: (f"{_ACTOR}.ppo_max_token_len_per_gpu", f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
    LOG_PROB_BATCH: (f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu"),
}
# null: the library's own, the data's length, or as many steps as the epochs have.
OPTIONAL_COUNTS = (f"{_ROLLOUT}.max_num_batched_tokens", f"{_ROLLOUT}.max_model_len", "trainer.total_training_steps")
WHOLE_NUMBERS = {
    "trainer.save_freq": "-1: never",
    "trainer.test_freq": "-1: never",
    f"{_ACTOR}.fsdp_config.fsdp_size": "-1: all ranks",
}
# Each library has its own spellings: `verl/utils/torch_dtypes.py`, and `ModelDType` in `vllm/config/model.py`.
VERL_DTYPES = {"fp32": 4, "float32": 4, "32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "16": 2}
VLLM_DTYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
MODEL_DTYPE, ROLLOUT_DTYPE = f"{_ACTOR}.fsdp_config.model_dtype", f"{_ROLLOUT}.dtype"
MIXED_PRECISION = f"{_ACTOR}.fsdp_config.mixed_precision"
MIXED_DTYPES = tuple(f"{MIXED_PRECISION}.{name}" for name in ("param_dtype", "reduce_dtype", "buffer_dtype"))
GPU_SHARE = f"{_ROLLOUT}.gpu_memory_utilization"


def world_size(config: DictConfig) -> int:
    """Ranks of the job: `trainer.nnodes` x `trainer.n_gpus_per_node`."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def sharding_ranks(config: DictConfig) -> int:
    """Ranks that share one copy of the parameters; all of them where `fsdp_size` is negative or more than there are
    (`verl/workers/engine/fsdp/utils.py`, `create_device_mesh`)."""
    ranks, size = world_size(config), config.actor_rollout_ref.actor.fsdp_config.fsdp_size
    return size if 0 < size < ranks else ranks


def micro_batch_key(config: DictConfig, switch: str) -> str:
    """Which key sizes a micro-batch: `switch` is one of MICRO_BATCHES."""
    by_tokens, by_sequences = MICRO_BATCHES[switch]
    return by_tokens if OmegaConf.select(config, switch) else by_sequences


def micro_batch_tokens(config: DictConfig, switch: str) -> int:
    """Most tokens of a micro-batch on one GPU: the budget, or so many longest sequences, spread over their ranks."""
    key = micro_batch_key(config, switch)
    size = OmegaConf.select(config, key)
    if key == MICRO_BATCHES[switch][0]:
        return size
    return -(-size * longest_sequence(config) // config.actor_rollout_ref.actor.ulysses_sequence_parallel_size)


def longest_sequence(config: DictConfig) -> int:
    """Tokens of the longest prompt with the longest response."""
    return config.data.max_prompt_length + config.data.max_response_length


def check_values(config: DictConfig) -> list[Finding]:
    """The sizes that everything here is computed from, where one is no number to compute with; empty for good ones."""
    findings = []
    for key in (*COUNTS, *(micro_batch_key(config, switch) for switch in MICRO_BATCHES), *OPTIONAL_COUNTS):
        value = OmegaConf.select(config, key)
        if (key not in OPTIONAL_COUNTS or value is not None) and not (_is_whole(value) and value >= 1):
            findings.append(Finding("size", Status.FAIL, f"{value!r} is no whole number of at least 1", key=key))
    for key, hint in WHOLE_NUMBERS.items():
        if not _is_whole(value := OmegaConf.select(config, key)):
            findings.append(Finding("size", Status.FAIL, f"{value!r} is no whole number ({hint})", key=key))
    if OmegaConf.select(config, key := f"{_ACTOR}.fsdp_config.fsdp_size") == 0:
        findings.append(Finding("size", Status.FAIL, "parameters cannot be shared by 0 ranks (-1: all ranks)", key=key))
    try:
        fits = 0 < gpu_share(config) <= 1
    except (TypeError, ValueError):
        fits = False
    if not fits:
        share = OmegaConf.select(config, GPU_SHARE)
        findings.append(Finding("size", Status.FAIL, f"{share!r} is no number above 0 and up to 1", key=GPU_SHARE))
    return [*findings, *_check_dtypes(config)]


def gpu_share(config: DictConfig) -> float:
    """vLLM's share of a GPU. A text, as `${oc.env:...}` gives it, is as good as a number: vLLM parses one.

    Raises:
        TypeError, ValueError: it is no number.
    """
    share = OmegaConf.select(config, GPU_SHARE)
    if isinstance(share, bool):
        raise TypeError(f"{share} is no number")
    return float(share)


def _check_dtypes(config: DictConfig) -> Iterator[Finding]:
    def judge(key: str, known: dict[str, int], *others: str | None) -> Iterator[Finding]:
        value = OmegaConf.select(config, key)
        if value not in others and str(value) not in known:
            yield Finding("dtype", Status.FAIL, f"{value!r} is none of {', '.join(known)}", key=key)

    yield from judge(MODEL_DTYPE, VERL_DTYPES, None)
    yield from judge(ROLLOUT_DTYPE, VLLM_DTYPES, None, "auto")
    mixed = OmegaConf.select(config, MIXED_PRECISION)
    if mixed is not None and not isinstance(mixed, DictConfig):
        detail = f"{mixed!r} is no group of param_dtype, reduce_dtype and buffer_dtype"
        yield Finding("dtype", Status.FAIL, detail, key=MIXED_PRECISION)
        return
    for key in MIXED_DTYPES:
        if mixed is not None and key.rpartition(".")[2] in mixed:  # verl has a default for an absent key, none for null
            yield from judge(key, VERL_DTYPES)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_sizes(config: DictConfig, max_position_embeddings: int | None = None) -> list[Finding]:
    """Every demand, met or not.

    Args:
        config: the whole configuration, resolved.
        max_position_embeddings: tokens; the model's context, None where the model is not known.
    """
    return [*_ranks(config), *_tokens(config, max_position_embeddings)]


def _demand(what: str, met: bool, detail: str, key: str) -> Finding:
    return Finding(what, Status.OK if met else Status.FAIL, detail, key="" if met else key)


def _ranks(config: DictConfig) -> Iterator[Finding]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks, sequence_parallel = world_size(config), actor.ulysses_sequence_parallel_size
    yield _demand(
        "sequence parallel",
        ranks % sequence_parallel == 0,
        f"{ranks} ranks in groups of {sequence_parallel}",
        f"{_ACTOR}.ulysses_sequence_parallel_size",
    )
    if ranks % sequence_parallel == 0:
        data_parallel = ranks // sequence_parallel
        # verl: TrainingWorker.train_mini_batch asserts it of the mini-batch's responses.
        yield _demand(
            "mini-batch",
            actor.ppo_mini_batch_size * rollout.n % data_parallel == 0,
            f"{actor.ppo_mini_batch_size} prompts x {rollout.n} responses over {data_parallel} data-parallel ranks",
            f"{_ACTOR}.ppo_mini_batch_size",
        )
    shards = sharding_ranks(config)
    yield _demand(
        "shards",
        ranks % shards == 0,
        f"{ranks} ranks in groups of {shards} that share the parameters",
        f"{_ACTOR}.fsdp_config.fsdp_size",
    )
    replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    yield _demand(
        "rollout replicas",
        ranks % replica == 0,
        f"{ranks} ranks in replicas of {replica}",
        f"{_ROLLOUT}.tensor_model_parallel_size",
    )


def _tokens(config: DictConfig, max_position_embeddings: int | None) -> Iterator[Finding]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    longest = longest_sequence(config)
    context, key = rollout.max_model_len or max_position_embeddings, f"{_ROLLOUT}.max_model_len"
    if context is None:
        yield Finding("context", Status.UNKNOWN, f"prompt and response take {longest} tokens; the model is not known")
    else:
        yield _demand("context", longest <= context, f"prompt and response take {longest} of {context} tokens", key)
        positions = max_position_embeddings or context
        if context > positions:
            yield _demand("context", False, f"vLLM plans for {context} tokens, the model has {positions}", key)
    # verl/utils/seqlen_balancing.py (`rearrange_micro_batches`) asserts it.
    ranks = actor.ulysses_sequence_parallel_size
    for what, switch in (("token budget, update", UPDATE_BATCH), ("token budget, log-prob", LOG_PROB_BATCH)):
        key = micro_batch_key(config, switch)
        if key == MICRO_BATCHES[switch][0]:
            tokens = micro_batch_tokens(config, switch)
            detail = f"{tokens} tokens x {ranks} ranks a sequence, for sequences of {longest}"
            yield _demand(what, tokens * ranks >= longest, detail, key)
