"""Our scheduler beside vLLM's own, step by step: what is scheduled, the state of requests, and how they end."""

import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm")
import torch
from transformers import LlamaConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from gtpo_verl.verl_plugin.rollout import scheduler as ours

BLOCK, LONGEST, VOCABULARY, EOS = 4, 96, 40, 7


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("model")
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    return engine_config(folder)


def engine_config(folder: Path):
    arguments = EngineArgs(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        max_model_len=LONGEST,
        max_num_seqs=24,
        max_num_batched_tokens=128,
        enforce_eager=True,
        dtype="float32",
    )
    return arguments.create_engine_config()


def make(kind, config, blocks: int):
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    return kind(
        config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=False,
    )


def request(number: int, chance: random.Random, hasher) -> tuple[dict, list[int]]:
    """Arguments of parameters, and a prompt; some prompts begin alike."""
    params = {
        "temperature": 1.0,
        "logprobs": 0,
        "max_tokens": chance.choice([1, 2, 5, 30, 60, 200]),
        "ignore_eos": chance.random() < 0.3,
        "min_tokens": chance.choice([0, 0, 3]),
        "stop_token_ids": chance.choice([None, [3, 5]]),
    }
    params["min_tokens"] = min(params["min_tokens"], params["max_tokens"])
    if chance.random() < 0.1:
        params["repetition_detection"] = RepetitionDetectionParams(max_pattern_size=2, min_count=3)
    start = [1] * chance.choice([0, 9])
    return params, start + [chance.randrange(10, VOCABULARY) for _ in range(chance.randrange(1, 20))]


class Side:
    """A scheduler and a model that samples what a hash of the request and its position says."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.under_way: list = []
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.ends: dict[str, tuple] = {}

    def add(self, name: str, params: dict, prompt: list[int], hasher) -> None:
        parameters = SamplingParams(**ours.read_whole(params))
        parameters.update_from_generation_config({}, EOS)
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=parameters,
                pooling_params=None,
                block_hasher=hasher,
            )
        )

    def step(self, late: int, salt: int) -> None:
        scheduled = self.scheduler.schedule()
        if scheduled.total_num_scheduled_tokens:
            self.under_way.append((scheduled, self.sample(scheduled, salt)))
        while self.under_way and (len(self.under_way) > late or not scheduled.total_num_scheduled_tokens):
            done, made = self.under_way.pop(0)
            for outputs in self.scheduler.update_from_output(done, made).values():
                for output in outputs.outputs:
                    self.take(output)
            if len(self.under_way) <= late:
                break

    def sample(self, scheduled, salt: int) -> ModelRunnerOutput:
        names = list(scheduled.num_scheduled_tokens)
        random.Random(salt).shuffle(names)
        tokens, logprobs, ranks = [], [], []
        for name in names:
            request = self.scheduler.requests[name]
            # As far as this step has computed; a prompt's chunk before its last samples nothing.
            position = request.num_computed_tokens
            whole = position >= request.num_prompt_tokens and position >= request.num_tokens
            token = random.Random(f"{name} {position}").randrange(VOCABULARY)
            tokens.append([token] if whole else [])
            logprobs.append([-token / 7])
            ranks.append(token + 1)
        ids = np.array([[one[0] if one else 0] for one in tokens], np.int32).reshape(-1, 1)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=LogprobsLists(ids, np.array(logprobs, np.float32).reshape(-1, 1), np.array(ranks, np.int32)),
            prompt_logprobs_dict={},
            pooler_output=[],
            # As either of vLLM's model runners has it, v1/worker/gpu_model_runner.py and v1/worker/gpu/model_runner.py.
            num_nans_in_logits={} if salt % 2 else None,
        )

    def take(self, output) -> None:
        self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        if output.new_logprobs is not None:
            self.logprobs.setdefault(output.request_id, []).extend(output.new_logprobs.logprobs[:, 0].tolist())
        if output.finish_reason is not None:
            self.ends[output.request_id] = (output.finish_reason, output.stop_reason)

    def state(self) -> dict:
        manager = self.scheduler.kv_cache_manager
        return {
            name: (
                request.status,
                request.num_computed_tokens,
                request.num_output_placeholders,
                [getattr(request, counter, None) for counter in ("num_in_flight_tokens", ours._STALE)],
                list(request.output_token_ids),
                list(request.block_hashes),
                manager.get_block_ids(name),
            )
            for name, request in self.scheduler.requests.items()
        } | {
            "running": [request.request_id for request in self.scheduler.running],
            "free": manager.block_pool.get_num_free_blocks(),
        }


# How many steps are under way while the next one is scheduled: none, vLLM's asynchronous way, and that of a pipeline.
@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("blocks", [1000, 60])  # of 60, requests are preempted
def test_in_lockstep(config, late: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asynchronous = late > 0
    assert ours._KNOWN, "this release of vLLM was not compared"
    monkeypatch.setattr(config.scheduler_config, "async_scheduling", asynchronous)
    digest = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(digest)
    hasher = get_request_block_hasher(BLOCK, digest)
    stock = Side(make(AsyncScheduler if asynchronous else Scheduler, config, blocks))
    mine = Side(make(lambda config, **options: ours.scheduler(config, **options), config, blocks))
    plain, preempted = {"older runner": 0, "newer runner": 0}, 0
    without_plain = mine.scheduler._without_plain

    def counted(scheduler_output, made, *others):
        rest = without_plain(scheduler_output, made, *others)
        taken = len(scheduler_output.num_scheduled_tokens) - len(rest.num_scheduled_tokens)
        plain["newer runner" if made.num_nans_in_logits is None else "older runner"] += taken
        return rest

    mine.scheduler._without_plain = counted
    chance, added = random.Random(f"{late} {blocks}"), 0
    for step in range(3000):
        while added < 400 and chance.random() < 0.4:
            params, prompt = request(added, chance, hasher)
            for side in (stock, mine):
                side.add(f"request {added}", params, prompt, hasher)
            added += 1
        if chance.random() < 0.03 and stock.scheduler.running:
            name = chance.choice(stock.scheduler.running).request_id
            for side in (stock, mine):
                side.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
                side.tokens.pop(name, None), side.logprobs.pop(name, None)
        if chance.random() < 0.01:  # all begin again, while tokens of theirs are on the way
            for side in (stock, mine):
                assert side.scheduler.reset_prefix_cache(reset_running_requests=True)
        for side in (stock, mine):
            side.step(late, step)
        assert mine.state() == stock.state(), step
        preempted += any(one.status is RequestStatus.PREEMPTED for one in stock.scheduler.requests.values())
        if added == 400 and not stock.scheduler.requests:
            break
    else:
        raise AssertionError("requests are left")
    assert mine.ends == stock.ends
    assert {name: mine.tokens[name] for name in mine.ends} == {name: stock.tokens[name] for name in stock.ends}
    assert {name: mine.logprobs[name] for name in mine.ends} == {name: stock.logprobs[name] for name in stock.ends}
    assert {reason for reason, _ in mine.ends.values()} == {reason for reason, _ in stock.ends.values()}
    assert min(plain.values()) > 300
    assert preempted or blocks > 60
