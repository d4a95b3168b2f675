"""What gtpo-verl assumes of verl, one assumption a test. `scripts/check_verl.sh` runs this file against another verl.

An assumption that no longer holds says here what breaks, instead of in the middle of a run.
"""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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
        "verl.trainer.ppo.metric_utils:bootstrap_metric",
        ["data", "subset_size", "reduce_fns", "n_bootstrap", "seed"],
        "a validation takes a minute for its statistics",
    ),
    (
        "verl.trainer.ppo.metric_utils:calc_maj_val",
        ["data", "vote_key", "val_key"],
        "a validation takes a minute for its majorities",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._init_dataloader",
        ["self"],
        "a run whose data ends early stops without a word",
    ),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._init_resource_pool_mgr",
        ["self"],
        "while a run starts, the terminal names an earlier stage",
    ),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_sample_begin", ["self"], "a stall is said of another phase"),
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_step_end", ["self"], "a stall is said of another phase"),
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
    ("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.prepare_step", ["self"], "gtpo_verl.first_batch has no effect"),
    (
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._add_prompts_to_generate",
        ["self", "num_prompts"],
        "gtpo_verl.first_batch ends the run",
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
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons",
        ["self", "global_steps", "partition_id"],
        "a group of which a response failed is trained on as a smaller one",
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
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.load_checkpoint",
        ["self"],
        "a learning rate that was changed has no effect on a resumed run",
    ),
    (
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead",
        [],
        "VERL_PLATFORM=cpu has no critic",
    ),
    (
        "verl.utils.tensordict_utils:get_non_tensor_data",
        ["data", "key", "default"],
        "our engine cannot read what it is asked for",
    ),
    ("verl.utils.tensordict_utils:assign_non_tensor", ["tensor_dict"], "our engine cannot hand its values to verl's"),
    ("verl.utils.tensordict_utils:list_of_dict_to_tensordict", ["list_of_dicts"], "rows do not travel together"),
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
    (
        "verl.workers.utils.padding:response_to_nested",
        ["tensor", "response_mask"],
        "algorithm.rollout_correction does nothing with our estimators",
    ),
    ("verl.trainer.main_ppo:run_ppo", ["config", "task_runner_class"], "no run starts"),
    (
        "verl.utils.config:validate_config",
        ["config", "use_reference_policy", "use_critic"],
        "what verl refuses is seen a minute later",
    ),
    ("verl.trainer.ppo.utils:need_critic", ["config"], "what verl refuses is seen a minute later"),
    ("verl.trainer.ppo.utils:need_reference_policy", ["config"], "what verl refuses is seen a minute later"),
    (
        "verl.utils.dataset.rl_dataset:RLHFDataset._read_files_and_tokenize",
        ["self"],
        "data files are not read as verl reads them",
    ),
    (
        "verl.utils.model:update_model_config",
        ["module_config", "override_config_kwargs"],
        "a checkpoint is compared with another model than the run's",
    ),
    (
        "verl.utils.model:get_hf_auto_model_class",
        ["hf_config"],
        "a checkpoint is compared with another model than the run's",
    ),
    (
        "verl.utils.reward_score:get_default_compute_score",
        [],
        "gtpo-verl eval has no reward for a run that names none",
    ),
    (
        "verl.utils.distributed:initialize_global_process_group_ray",
        ["timeout_second", "backend"],
        "VERL_PLATFORM=cpu has no process group",
    ),
    ("verl.utils.tracking:Tracking.log", ["self", "data", "step"], "a checkpoint precedes the metrics of its step"),
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
    (
        "transfer_queue:async_kv_batch_put",
        ["keys", "partition_id", "fields", "tags"],
        "rows do not travel together",
    ),
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


TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
ENGINE = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead"
OUTPUT = "verl.experimental.agent_loop.agent_loop:AgentLoopOutput.as_dict"
ROWS = "verl.trainer.ppo.v1.agent_loop_tq:"

# (where, what the source says, what breaks without)
SAYS = [
    ("verl:", 'group="verl.plugins"', "verl does not find the plugin"),
    ("verl:", "VERL_USE_EXTERNAL_PLUGINS", "the error names a variable that switches nothing"),
    (f"{TRAINER}.__init__", "self.config = config", "our trainer has no configuration"),
    (f"{TRAINER}.__init__", "self.replay_buffer = self._build_replay_buffer()", "sampling has no limit"),
    (f"{TRAINER}.__init__", "self.use_teacher_policy =", "every field travels to the engine"),
    (f"{TRAINER}.__init__", "build_checkpoint_callback(config)", "trainer.checkpoint_callback_class has no effect"),
    (f"{TRAINER}._init_tokenizer", "self.tokenizer =", "no tokens are dumped"),
    (f"{TRAINER}._init_tokenizer", "self.processor =", "every field travels to the engine"),
    (f"{TRAINER}._init_dataloader", "self.train_dataset =", "a run whose data ends early stops without a word"),
    (f"{TRAINER}._build_replay_buffer", "else ReplayBuffer", "our buffer does not know verl's from a user's own"),
    (f"{TRAINER}._build_replay_buffer", "custom_sampler.path", "a user's own sampler has no effect"),
    (f"{TRAINER}._load_checkpoint", "self.global_steps = 0", "a run does not know where it goes on"),
    (f"{TRAINER}._load_checkpoint", "trainer.resume_from_path", "a slash behind a checkpoint's path ends the run"),
    (f"{TRAINER}._load_checkpoint", '"data.pt"', "a whole checkpoint is taken for a torn one"),
    (f"{TRAINER}._save_checkpoint", '"actor"', "a whole checkpoint is taken for a torn one"),
    (f"{TRAINER}._save_checkpoint", "latest_checkpointed_iteration.txt", "no checkpoint is found"),
    (f"{TRAINER}._save_checkpoint", "self.checkpoint_callback.on_save(", "a user's callback is not called"),
    (f"{TRAINER}._save_checkpoint", 'get("max_actor_ckpt_to_keep"', "workers delete checkpoints themselves"),
    (f"{TRAINER}._compute_old_log_prob", 'data["old_log_probs"] =', "there are no old log-probabilities"),
    (f"{TRAINER}._compute_old_log_prob", 'data["entropy"] =', "there are no entropies, so no advantages"),
    (f"{TRAINER}._compute_old_log_prob", "tq.kv_batch_get(", "the trainer fetches what it has had or put"),
    (f"{TRAINER}._update_actor", "batch.extra_info.update(", "workers fetch prompts and responses twice a step"),
    (f"{TRAINER}.fit", "tq.kv_clear(keys=batch.keys", "columns of a step are held while the next one samples"),
    (
        "verl.utils.transferqueue_utils:tqbridge",
        "_meta_to_realdata(",
        "workers fetch prompts and responses twice a step",
    ),
    (
        "verl.utils.transferqueue_utils:tqbridge",
        "_update_meta_with_output(output, batch_meta, func.__name__)",
        "what a pass makes goes through TransferQueue row by row",
    ),
    (
        "verl.protocol:BatchData.concat",
        "merged_extra_info.setdefault(k, []).append(v)",
        "what the workers made does not come one worker after another",
    ),
    (
        f"{TRAINER}._compute_old_log_prob",
        "self.actor_rollout_wg.compute_log_prob(batch)",
        "nobody takes what the workers made",
    ),
    (f"{TRAINER}.__init__", "self.use_critic =", "a critic finds columns missing"),
    (f"{TRAINER}.__init__", "self.use_reference_policy =", "a reference policy finds columns missing"),
    (
        "transfer_queue.client:AsyncTransferQueueClient.async_put",
        "limit_pytorch_auto_parallel_threads(",
        "every put counts the machine's cores",
    ),
    (f"{TRAINER}._compute_advantage", '["advantages", "returns"]', "verl reads our advantages under another name"),
    (f"{TRAINER}._compute_advantage", '"rm_scores"', "rewards that are no number are not refused"),
    (f"{TRAINER}._validate", '"val"', "failed responses of a validation are not noticed"),
    (f"{TRAINER}._step_once", "self.on_sample_begin()", "a stall is said of another phase"),
    (f"{TRAINER}._compute_metrics", 'tag.get("is_padding"', "rows that fill a batch count as responses"),
    (f"{BUFFER}.__init__", "self.partitions:", "groups with missing responses are trained on as smaller ones"),
    (f"{BUFFER}.__init__", "self.finished_keys:", "groups with missing responses are trained on as smaller ones"),
    (f"{BUFFER}.__init__", "self.failure_keys:", "groups with failed responses are trained on as smaller ones"),
    (f"{BUFFER}.__init__", "self.refill_fn =", "failed groups are not sampled again"),
    (f"{BUFFER}.__init__", "self.gen_batch_size =", "failed groups are not sampled again"),
    (f"{BUFFER}.__init__", "self.poll_interval =", "gtpo_verl.poll_interval has no effect"),
    (f"{BUFFER}.__init__", "self.filter_groups_metric =", "groups that are thrown away are not counted"),
    (
        f"{BUFFER}.sample",
        "self.max_inflight_gen_batches * self.train_batch_size",
        "gtpo_verl.first_batch is followed by groups that nobody needs",
    ),
    (f"{TRAINER}.prepare_step", "_add_batch_to_generate()", "gtpo_verl.first_batch asks for a batch too few"),
    (f"{BUFFER}.sample", "/filter_groups/discarded_surplus_samples", "groups that were tried are counted wrong"),
    (
        f"{BUFFER}._terminal_eviction_reasons",
        "return set(), dapo_uids, failed_uids, dapo_counts",
        "failed groups are taken for others",
    ),
    (
        f"{BUFFER}._evict_terminal_groups",
        "return evicted_uids, len(stale_uids), len(dapo_uids), metrics",
        "groups that are thrown away are not counted",
    ),
    (f"{BUFFER}._sync_metadata_from_transfer_queue", 'tag.get("is_prompt"', "failed groups do not say why"),
    (ROWS, 'f"{uid}_{session_id}_{i}"', "rows are counted for other prompts and responses"),
    (ROWS, '"train" if not validate else "val"', "failed responses of a validation are not noticed"),
    (ROWS, '{"status": status}', "failed groups do not say why"),
    (ROWS, 'status = "failure"', "failed groups do not say why"),
    (ROWS, "field.update(kwargs)", "rows have no `uid`"),
    (ROWS, 'field["input_ids"] =', "the engine gets no tokens"),
    (ROWS, "input_ids = torch.cat([prompts, responses], dim=0)", "workers make other tokens of the same rows"),
    (ROWS, 'field["loss_mask"] = field["response_mask"]', "workers make another mask of the same rows"),
    (ROWS, 'field["position_ids"] =', "the engine gets no positions"),
    (ROWS, 'field["loss_mask"] =', "the engine gets no mask"),
    (OUTPUT, 'output["prompts"] =', "no prompts are dumped"),
    (OUTPUT, 'output["responses"] =', "no tokens are dumped"),
    (OUTPUT, 'output["response_mask"] =', "nobody knows whose tokens they are"),
    (OUTPUT, 'output["rollout_log_probs"] =', "algorithm.rollout_correction does nothing with our estimators"),
    (OUTPUT, 'output["rm_scores"] =', "rewards that are no number are not refused"),
    (OUTPUT, '"extra_fields"', "right and wrong are not known"),
    (
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score",
        'extra_fields["reward_extra_info"] = result["reward_extra_info"]',
        "right and wrong are not known",
    ),
    (
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score",
        'result["reward_score"]',
        "rewards that are no number are not refused",
    ),
    *(
        (f"{ENGINE}.prepare_model_outputs", f'key="{flag}"', f"our engine does not see {flag}")
        for flag in (
            "use_remove_padding",
            "use_fused_kernels",
            "calculate_entropy",
            "calculate_sum_pi_squared",
            "distillation_use_topk",
            "distillation_only",
        )
    ),
    *(
        (f"{ENGINE}.prepare_model_inputs", f'output_args["{name}"]', "our engine computes from nothing")
        for name in ("input_ids_rmpad_rolled", "temperature_rmpad", "temperature")
    ),
    (f"{ENGINE}.prepare_model_inputs", '"temperature_is_one":', "a temperature of 1 is divided by"),
    (f"{ENGINE}.prepare_model_outputs", "output.log_probs", "verl does not take our log-probabilities"),
    (f"{ENGINE}.prepare_model_outputs", "output.entropy", "verl does not take our entropies"),
    (f"{ENGINE}.__init__", "self.optimizer_config =", "a changed learning rate has no effect on a resumed run"),
    (f"{ENGINE}._build_model_optimizer", "self.optimizer =", "a changed learning rate has no effect on a resumed run"),
    (f"{ENGINE}._build_model_optimizer", "self.lr_scheduler =", "a changed schedule has no effect on a resumed run"),
    ("verl.workers.engine_workers:", "partial(ppo_loss, config=", "an entropy is differentiated for nothing"),
    *(
        ("verl.workers.utils.losses:ppo_loss", f'global_batch_info["{name}"]', "a loss is a mean over its rank alone")
        for name in ("dp_size", "batch_num_tokens", "global_batch_size")
    ),
    ("verl.workers.utils.padding:no_padding_2_padding", '"max_response_len"', "responses are padded to another width"),
    *(
        ("verl.trainer.ppo.rollout_corr_helper:", f'"{name}"', "algorithm.rollout_correction changes nothing")
        for name in ("rollout_is_weights", "response_mask", "old_log_probs", "rollout_log_probs")
    ),
    *(
        ("verl.utils.dataset.rl_dataset:RLHFDataset._read_files_and_tokenize", f"self.{name}", "no data can be checked")
        for name in ("data_files", "max_samples", "dataframe")
    ),
    (
        "verl.utils.dataset.rl_dataset:RLHFDataset.maybe_filter_out_long_prompts",
        "self.filter_overlong_prompts",
        "no data can be checked",
    ),
    ("verl.trainer.constants_ppo:", "_major, _ = get_device_capability()", "nothing: what answers it can go"),
    ("verl.trainer.constants_ppo:", "PPO_RAY_RUNTIME_ENV", "forked workers read other variables than Ray's own"),
    ("verl.trainer.main_ppo:", '"agent_loop_manager_class"', "responses travel one by one"),
    ("verl.trainer.main_ppo:", "self.trainer.get_llm_client()", "responses travel one by one"),
    ("verl.trainer.main_ppo:run_ppo", 'config.ray_kwargs.get("ray_init"', "a run on a CPU joins a cluster"),
    ("verl.utils.tracking:", "VERL_FILE_LOGGER_PATH", "metrics lie somewhere else"),
]


def source_of(path: str) -> str:
    """Of a module (`package.module:`), whatever it needs to be imported, or of a name in it."""
    module, _, names = path.partition(":")
    if not names:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).read_text(encoding="utf-8")
    found = resolve(path)
    return inspect.getsource(found.__ray_metadata__.modified_class if hasattr(found, "__ray_metadata__") else found)


@pytest.mark.parametrize(("path", "text", "breaks"), SAYS, ids=[f"{path} {text}" for path, text, _ in SAYS])
def test_verl_does_it_this_way(path: str, text: str, breaks: str) -> None:
    try:
        source = source_of(path)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{error}; {breaks}")
    assert text in source, f"{path}: {breaks}"


def test_loggers_are_open_before_the_first_hook_and_a_checkpoint_comes_before_the_metrics() -> None:
    """Else: metrics do not survive a resume; a checkpoint is never written."""
    source = inspect.getsource(resolve(f"{TRAINER}.fit"))
    steps = ["self.logger = Tracking(", "self.on_validate_begin()", "self.on_train_begin()"]
    steps += ["self._save_checkpoint()", "self.on_step_end()", "self.logger.log(data=metrics, step=self.global_steps)"]
    places = [source.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)


def test_an_estimator_is_registered_twice_but_not_another_of_its_name() -> None:
    """Else: registering again, in a process that imports verl's modules twice, ends it or changes the method."""
    core_algos = importlib.import_module("verl.trainer.ppo.core_algos")

    def estimate() -> None: ...

    name = "of_the_contract_tests"
    try:
        for _ in range(2):
            core_algos.register_adv_est(name)(estimate)
        with pytest.raises(ValueError, match=name):
            core_algos.register_adv_est(name)(lambda: None)
    finally:
        core_algos.ADV_ESTIMATOR_REGISTRY.pop(name, None)


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


@pytest.mark.parametrize("method", ["compute_log_prob", "compute_ref_log_prob", "update_actor"])
def test_the_workers_passes_are_no_coroutines(method: str) -> None:
    """Those fetch by another function: workers would fetch prompts and responses twice a step."""
    assert not inspect.iscoroutinefunction(resolve(f"verl.workers.engine_workers:ActorRolloutRefWorker.{method}"))


def test_positions_of_text_are_those_that_workers_make() -> None:
    from gtpo_verl.verl_plugin import jagged

    rows = [torch.ones(1, length, dtype=torch.int64) for length in (5, 1, 3)]
    loop = SimpleNamespace(processor=None)
    of_row = resolve("verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_position_ids")
    verls = [of_row(loop, row, row, {}).squeeze(0) for row in rows]
    ours = jagged.positions(torch.nested.as_nested_tensor([row[0] for row in rows], layout=torch.jagged))
    assert torch.equal(ours.values(), torch.cat(verls))


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


CONFIGS = Path(__file__).parents[2] / "configs"
# Groups of our own, of Hydra, and of Ray (`ray.init` takes them).
NOT_VERLS = ("defaults", "hydra", "gtpo_verl", "algorithm.gtpo", "algorithm.forking", "ray_kwargs.ray_init")
# In verl's dataclasses and not in its YAML, or what a class reads of a mapping that is anybody's.
ELSEWHERE = {
    "actor_rollout_ref.actor.fsdp_config.mixed_precision": "verl.workers.config.engine:FSDPEngineConfig",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision": "verl.workers.config.engine:FSDPEngineConfig",
    "actor_rollout_ref.rollout.enable_sleep_mode": "verl.workers.config.rollout:RolloutConfig",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "verl.workers.config.rollout:AgentLoopConfig",
    "reward.reward_kwargs": "verl.experimental.reward_loop.reward_manager.dapo:DAPORewardManager",
}
READ = [
    "actor_rollout_ref.actor.checkpoint.async_save",
    "actor_rollout_ref.actor.checkpoint.load_contents",
    "actor_rollout_ref.actor.checkpoint.save_contents",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size",
    "actor_rollout_ref.actor.optim.optimizer",
    "actor_rollout_ref.actor.optim.optimizer_impl",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.model.custom_chat_template",
    "actor_rollout_ref.model.exclude_modules",
    "actor_rollout_ref.model.hf_config_path",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.target_modules",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.trust_remote_code",
    "actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.agent.default_agent_loop",
    "actor_rollout_ref.rollout.disaggregation.enabled",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay",
    "actor_rollout_ref.rollout.router_config_path",
    "actor_rollout_ref.rollout.top_k",
    "actor_rollout_ref.rollout.trace.backend",
    "algorithm.rollout_correction.bypass_mode",
    "algorithm.use_kl_in_reward",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "data.apply_chat_template_kwargs",
    "data.custom_cls.path",
    "data.filter_overlong_prompts",
    "data.shuffle",
    "data.train_max_samples",
    "ray_kwargs.ray_init.num_cpus",
    "reward.reward_model.model_path",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.resume_from_path",
    "trainer.rollout_data_dir",
    "trainer.total_epochs",
    "trainer.v1.sampler.custom_sampler",
    "trainer.val_only",
    "trainer.validation_data_dir",
    "transfer_queue.backend.storage_backend",
]


def leaves(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for name, value in node.items_ex(resolve=False):
        key = f"{prefix}{name}"
        if isinstance(value, DictConfig) and len(value) and key not in NOT_VERLS:
            yield from leaves(value, f"{key}.")
        elif key not in NOT_VERLS:
            yield key


KEYS = sorted({key for path in CONFIGS.rglob("*.yaml") for key in leaves(OmegaConf.load(path))} | {*READ, *ELSEWHERE})


@pytest.fixture(scope="module")
def verls_config() -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_configuration(key: str, verls_config: DictConfig) -> None:
    """Keys that a file of `configs/` sets or our code reads; the rest of verl's configuration is passed through."""
    for known, owner in ELSEWHERE.items():
        if f"{key}.".startswith(f"{known}."):
            assert known.rpartition(".")[2] in source_of(owner), f"{owner} has no {key}; it has no effect"
            return
    node: Any = verls_config
    for name in key.split("."):
        if not OmegaConf.is_dict(node) or (not node and name not in node):
            return  # null, or a mapping for anything
        keys = list(node.keys())  # `in` is false for a value that must be given
        assert name in keys, f"verl's ppo_trainer has no {key}; it is set or read and has no effect"
        node = node._get_node(name)


def test_the_trainer_logs_what_it_has_finished() -> None:
    """Breaks: while a run starts, the terminal names an earlier stage."""
    from gtpo_verl.verl_plugin import stages

    source = inspect.getsource(importlib.import_module("verl.trainer.ppo.v1.trainer_base"))
    assert [message for message in stages._NEXT if not re.search(rf'logger\.info\(f?"{message}', source)] == []
