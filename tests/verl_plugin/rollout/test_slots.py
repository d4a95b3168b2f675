"""Slots that are not asked for are the slots that vLLM's cache manager gives."""

import pytest

pytest.importorskip("vllm")
import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from gtpo_verl.verl_plugin.rollout import slots

BLOCK = 4
SIZES = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def manager(blocks: int = 60, spec=None) -> KVCacheManager:
    spec = spec or FullAttentionSpec(BLOCK, **SIZES)
    config = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, max_model_len=256, scheduler_block_size=BLOCK, hash_block_size=BLOCK)


class Responses:
    """Requests of one manager, which ask for a slot a token as vLLM's schedulers do."""

    def __init__(self, manager: KVCacheManager):
        self.manager = manager
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.running: dict[str, Request] = {}

    def begin(self, name: str, prompt: list[int]) -> int | None:
        """How much of the prompt was there already; None where there is no room."""
        request = Request(name, prompt, SamplingParams(max_tokens=200), None, block_hasher=self.hasher)
        blocks, cached, *_ = self.manager.get_computed_blocks(request)
        given = self.manager.allocate_slots(
            request, len(prompt) - cached, num_new_computed_tokens=cached, new_computed_blocks=blocks
        )
        if given is None:
            return None
        request.num_computed_tokens = len(prompt)
        self.running[name] = request
        return cached

    def step(self, name: str, token_id: int, asynchronous: bool) -> tuple[list[int], list[int]] | None:
        """Another token: the blocks that it brought, and all of the request's; None where there is none left."""
        request = self.running[name]
        if not asynchronous:
            request.append_output_token_ids(token_id)
        given = self.manager.allocate_slots(request, 1, num_lookahead_tokens=0)
        if given is None:
            self.end(name)
            return None
        request.num_computed_tokens += 1
        if asynchronous:  # the token is known after the next one has got its slot
            request.append_output_token_ids(token_id)
            self.manager.cache_blocks(request, request.num_computed_tokens - 1)
        return given.get_block_ids(allow_none=True), self.manager.get_block_ids(name)[0]

    def end(self, name: str) -> None:
        self.manager.free(self.running.pop(name))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_same_blocks_and_the_same_prefixes(asynchronous: bool) -> None:
    """Requests with prompts in common, of which one by one begins, grows, ends or finds no slot."""
    init_none_hash(sha256)
    stock, ours = Responses(manager()), Responses(manager())
    slots.install(ours.manager)
    random = torch.Generator().manual_seed(1)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=random))

    prompts = [[draw(50) for _ in range(length)] for length in (1, 3, 4, 5, 8, 13, 17)]
    full = shared = 0
    for number in range(3000):
        name = f"r{number}"
        if not stock.running or (len(stock.running) < 4 and draw(4)):
            prompt = prompts[draw(len(prompts))] + [draw(2)]
            cached = stock.begin(name, prompt)
            assert ours.begin(name, prompt) == cached
            shared += cached or 0
            continue
        name = list(stock.running)[draw(len(stock.running))]
        if draw(40) == 0:
            stock.end(name)
            ours.end(name)
            continue
        token_id = draw(3)
        expected = stock.step(name, token_id, asynchronous)
        assert ours.step(name, token_id, asynchronous) == expected
        full += expected is None
        assert ours.manager.block_pool.get_num_free_blocks() == stock.manager.block_pool.get_num_free_blocks()
    assert full > 5  # at times there was none left
    assert shared > 100
    assert set(stock.manager.block_pool.cached_block_hash_to_block._cache) == set(
        ours.manager.block_pool.cached_block_hash_to_block._cache
    )


def test_it_asks_once_or_twice_a_block(monkeypatch) -> None:
    init_none_hash(sha256)
    asked = []
    stock = KVCacheManager.allocate_slots
    monkeypatch.setattr(KVCacheManager, "allocate_slots", lambda *a, **k: asked.append(1) or stock(*a, **k))
    responses = Responses(manager())
    slots.install(responses.manager)
    responses.begin("a", [1, 2, 3])
    for token_id in range(100):
        assert responses.step("a", token_id, False)
    assert 25 <= len(asked) <= 60


def test_windows_are_left_to_vllm() -> None:
    """Where blocks are given back on the way."""
    windows = manager(spec=SlidingWindowSpec(BLOCK, sliding_window=8, **SIZES))
    before = windows.allocate_slots, windows.cache_blocks
    slots.install(windows)
    assert (windows.allocate_slots, windows.cache_blocks) == before
