"""What gtpo-verl assumes of verl, one assumption a test. `scripts/check_verl.sh` runs this file against another verl.

An assumption that no longer holds says here what breaks, instead of in the middle of a run.
"""

import importlib
import inspect
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf


def resolve(path: str) -> Any:
    """`package.module:name.name`."""
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


# (what is there, the parameters that we give or override, what breaks without)
CALLABLES = [
    ("verl.trainer.ppo.core_algos:register_adv_est", ["name_or_enum"], "the six estimators are not known"),
    ("verl.trainer.ppo.core_algos:register_policy_loss", ["name"], "the three losses are not known"),
    ("verl.trainer.ppo.core_algos:get_policy_loss_fn", ["name"], "the losses are registered, and never asked for"),
    ("verl.trainer.ppo.v1:get_trainer_cls", ["name"], "our trainer is never built"),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.__init__", ["self", "config"], "our trainer cannot be built"),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._build_replay_buffer", ["self"], "sampling has no limit"),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._init_dataloader",
        ["self"],
        "a run whose data ends early stops without a word",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._compute_old_log_prob",
        ["self", "batch", "metrics"],
        "every field travels to the engine",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._compute_advantage",
        ["self", "batch", "metrics"],
        "advantages are GRPO's, whatever the estimator, and no tokens are dumped",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._update_actor",
        ["self", "batch", "metrics"],
        "every field travels to the engine",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.fit",
        ["self", "agent_loop_manager"],
        "metrics do not survive a resume",
    ),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_train_begin", ["self"], "old metrics are not put back"),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_validate_begin", ["self"], "old metrics are not put back"),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._save_checkpoint",
        ["self"],
        "checkpoints precede their metrics, and all are kept",
    ),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._load_checkpoint", ["self"], "torn checkpoints are loaded"),
    (
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
        ["self", "global_steps", "partition_id", "batch_size"],
        "sampling has no limit",
    ),
    (
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll",
        ["self", "partition_id", "last_debug_time"],
        "a dead vLLM server is awaited for ever",
    ),
    (
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._evict_terminal_groups",
        ["self", "global_steps", "partition_id", "eviction_reasons"],
        "groups that are thrown away are not counted",
    ),
    (
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sampleable_terminal_keys",
        ["self", "partition_id", "eviction_reasons"],
        "groups that can be used are not counted",
    ),
    (
        "verl.workers.engine.base:EngineRegistry.register",
        ["model_type", "backend", "device", "vendor"],
        "our engine is not known",
    ),
    (
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs",
        ["self", "output", "output_args", "micro_batch", "logits_processor_func"],
        "entropies are verl's, in bf16",
    ),
    (
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.initialize",
        ["self"],
        "batches are handled row by row",
    ),
    (
        "verl.utils.tensordict_utils:index_select_tensor_dict",
        ["batch", "indices"],
        "mini-batches and micro-batches are cut row by row",
    ),
    (
        "verl.workers.engine.utils:restore_dynamic_batch",
        ["data", "batch_idx_list"],
        "outputs are put in order row by row",
    ),
    ("verl.workers.utils.losses:no_padding_2_padding", ["tensor", "data"], "a loss waits for the GPU at every row"),
    (
        "verl.trainer.ppo.v1.trainer_base:response_from_nested",
        ["tensor", "response_mask"],
        "log-probabilities are cut row by row",
    ),
    (
        "verl.trainer.ppo.v1.trainer_base:response_to_nested",
        ["tensor", "response_mask"],
        "verl's advantages are cut row by row",
    ),
    (
        "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_and_add_to_batch",
        ["batch", "rollout_corr_config"],
        "algorithm.rollout_correction does nothing with our estimators",
    ),
    ("verl.trainer.main_ppo:run_ppo", ["config", "task_runner_class"], "no run starts"),
    (
        "verl.utils.config:validate_config",
        ["config", "use_reference_policy", "use_critic"],
        "what verl refuses is seen a minute later",
    ),
    ("verl.utils.device:auto_set_device", ["config"], "trainer.device is not what verl will use"),
    ("verl.trainer.ppo.reward:get_custom_reward_fn", ["config"], "the reward function is not tried before a run"),
    (
        "verl.utils.checkpoint.checkpoint_manager:find_latest_ckpt_path",
        ["path"],
        "a run goes on from another checkpoint than was checked",
    ),
    ("verl.plugin.platform:PlatformRegistry.register", ["platform"], "VERL_PLATFORM=cpu is unknown"),
    ("transfer_queue:kv_batch_get", ["keys", "partition_id", "select_fields"], "no batch can be read"),
    ("transfer_queue:kv_batch_put", ["keys", "partition_id", "fields"], "no advantages can be written"),
    ("transfer_queue:kv_list", ["partition_id"], "waiting for responses cannot be watched"),
]


@pytest.mark.parametrize(("path", "parameters", "breaks"), CALLABLES, ids=[path for path, _, _ in CALLABLES])
def test_it_is_there_and_takes_what_we_give(path: str, parameters: list[str], breaks: str) -> None:
    try:
        signature = inspect.signature(resolve(path))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{error}; {breaks}")
    taken = list(signature.parameters)
    missing = [name for name in parameters if name not in taken]
    assert not missing, f"{path} no longer takes {missing} but {taken}; {breaks}"


# (what is there, what must be in it or have these attributes, what breaks without)
MEMBERS = [
    ("verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY", ["grpo"], "registration cannot be checked"),
    ("verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY", ["vanilla"], "registration cannot be checked"),
    ("verl.trainer.ppo.v1.trainer_base:TRAINER_REGISTRY", ["sync"], "our trainer cannot take verl's place"),
]


@pytest.mark.parametrize(("path", "members", "breaks"), MEMBERS, ids=[path for path, _, _ in MEMBERS])
def test_registries_are_dictionaries_by_name(path: str, members: list[str], breaks: str) -> None:
    registry = resolve(path)
    assert isinstance(registry, dict), breaks
    assert set(members) <= set(map(str, registry)), breaks


def test_the_replay_buffer_is_a_plain_object_that_another_class_can_take_over() -> None:
    buffer = resolve("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer")
    assert not hasattr(buffer, "__slots__"), "BoundedReplayBuffer.adopt copies its attributes"
    source = inspect.getsource(buffer.__init__)
    for attribute in ("poll_interval", "filter_groups_metric"):
        assert f"self.{attribute} =" in source, f"BoundedReplayBuffer reads {attribute}"


def test_groups_thrown_away_are_counted_under_a_known_name() -> None:
    name = resolve("verl.trainer.ppo.v1.replay_buffer:DAPO_FILTERED_REWARD_COUNTS_KEY")
    assert isinstance(name, str), "the error of dynamic sampling cannot say what was thrown away"


def test_a_batch_in_transfer_queue_can_choose_its_fields() -> None:
    from transfer_queue import KVBatchMeta

    batch = KVBatchMeta(keys=["a_0_0"], tags=[{}], partition_id="train", fields=["input_ids"])
    batch.fields = ["responses"]
    assert (batch.keys, batch.tags, batch.partition_id, batch.extra_info) == (["a_0_0"], [{}], "train", {})


def test_the_engine_fetches_the_fields_that_a_batch_chooses() -> None:
    source = inspect.getsource(resolve("verl.utils.transferqueue_utils:async_kv_batch_meta2batch_meta"))
    assert "select_fields" in source, "every field travels to the engine, as in stock verl"


def test_the_engines_vendor_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(resolve("verl.workers.engine.base:EngineRegistry"))
    assert "VERL_ENGINE_VENDOR" in source, "gtpo_verl.fused_entropy has no effect"


def test_the_loss_reads_the_fields_that_travel() -> None:
    from gtpo_verl.verl_plugin import transfer

    source = inspect.getsource(resolve("verl.workers.utils.losses:ppo_loss"))
    for field in transfer._LOSS:
        assert f'"{field}"' in source, f"{field} is sent to the engine for nothing"


def test_the_loss_gets_old_log_probabilities_and_advantages_by_name() -> None:
    source = inspect.getsource(resolve("verl.workers.utils.losses:ppo_loss"))
    for name in ("old_log_prob=", "log_prob=", "advantages=", "response_mask=", "rollout_is_weights=", "config="):
        assert name in source, f"our losses are not called with {name.rstrip('=')}"


def test_the_file_logger_has_an_open_file_that_lines_can_be_put_back_into(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = resolve("verl.utils.tracking:FileLogger")("project", "experiment")
    logger.fp.write(b"{}\n")
    logger.finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"{}\n", "metrics do not survive a resume"


def test_the_trackers_are_in_a_dictionary() -> None:
    source = inspect.getsource(resolve("verl.utils.tracking:Tracking"))
    assert "self.logger[" in source, "the file logger cannot be found, so metrics do not survive a resume"


def test_a_checkpoint_is_named_by_a_tracker_file(tmp_path) -> None:
    from gtpo_verl.run_folder.checkpoints import TRACKER

    (tmp_path / "global_step_3").mkdir()
    (tmp_path / TRACKER).write_text("3")
    latest = resolve("verl.utils.checkpoint.checkpoint_manager:find_latest_ckpt_path")(str(tmp_path))
    assert latest == str(tmp_path / "global_step_3"), "a run goes on from another checkpoint than was checked"


def test_a_checkpoint_merges_with_the_arguments_that_we_give() -> None:
    config = resolve("verl.model_merger.base_model_merger:ModelMergerConfig")
    names = {"operation", "backend", "local_dir", "target_dir", "hf_model_config_path"}
    assert names <= set(inspect.signature(config).parameters), "gtpo-verl convert cannot call verl's merger"
    assert resolve("verl.model_merger.fsdp_model_merger:FSDPModelMerger").merge_and_save


def test_the_task_runner_is_a_ray_actor_whose_class_can_be_subclassed() -> None:
    runner = resolve("verl.trainer.main_ppo:TaskRunnerV1")
    assert inspect.isclass(runner.__ray_metadata__.modified_class), "no run starts"


def test_the_cpu_platform_answers_all_that_a_platform_must() -> None:
    from gtpo_verl.verl_plugin.cpu.platform import CpuPlatform

    assert not CpuPlatform.__abstractmethods__, "VERL_PLATFORM=cpu cannot be built"


# Keys that our configuration sets or our code reads; the rest of verl's configuration is passed through.
KEYS = [
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.data_loader_seed",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.fsdp_config.model_dtype",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.calculate_log_probs",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.max_num_batched_tokens",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "algorithm.adv_estimator",
    "algorithm.filter_groups.enable",
    "algorithm.filter_groups.max_num_gen_batches",
    "algorithm.filter_groups.metric",
    "algorithm.use_kl_in_reward",
    "data.filter_overlong_prompts",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.prompt_key",
    "data.reward_fn_key",
    "data.seed",
    "data.train_batch_size",
    "data.train_files",
    "data.val_files",
    "ray_kwargs.ray_init.num_cpus",
    "reward.custom_reward_function.path",
    "reward.num_workers",
    "reward.reward_manager.name",
    "trainer.default_local_dir",
    "trainer.experiment_name",
    "trainer.logger",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.project_name",
    "trainer.resume_from_path",
    "trainer.resume_mode",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.total_training_steps",
    "trainer.use_v1",
    "trainer.v1.trainer_mode",
    "trainer.val_before_train",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
]


@pytest.fixture(scope="module")
def verls_config() -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_configuration(key: str, verls_config: DictConfig) -> None:
    parent, _, name = key.rpartition(".")
    group = OmegaConf.select(verls_config, parent)
    keys = [] if group is None else list(group.keys())  # `in` is false for a value that must be given
    assert name in keys, f"verl's ppo_trainer has no {key}; it is set or read and has no effect"


def test_the_trainer_logs_what_it_has_finished() -> None:
    """Breaks: while a run starts, the terminal names an earlier stage."""
    from gtpo_verl.verl_plugin import stages

    source = inspect.getsource(importlib.import_module("verl.trainer.ppo.v1.trainer_base"))
    assert [message for message in stages._NEXT if f'logger.info("{message}")' not in source] == []
