"""vLLM's cache of keys and values, asked for slots once a block and not once a token.

For every token of every request vLLM's scheduler asks its `KVCacheManager` for a slot, and then for the request's full
blocks to be entered into the prefix cache: half of what it does in a step of a thousand requests. Within a block the
answers are known: there is a slot, and no block has become full.
"""

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

_OF_RUNNING = {"num_lookahead_tokens": 0}  # what the scheduler says of a request that runs already


def install(manager: KVCacheManager) -> None:
    """Answers for `manager` where the answer is known. Does nothing for models whose layers do not all attend to
    everything: those of sliding windows free blocks on the way."""
    groups = manager.coordinator.single_type_managers
    if len(groups) != 1 or type(groups[0]) is not FullAttentionManager:
        return
    block = groups[0].block_size
    allocate, cache, nothing = manager.allocate_slots, manager.cache_blocks, manager.empty_kv_cache_blocks

    def allocate_slots(request: Any, num_new_tokens: int, **options: Any) -> Any:
        # One more token of a running request, neither the first nor the last of its block.
        one_more = num_new_tokens == 1 and (not options or options == _OF_RUNNING)
        if one_more and 0 < request.num_computed_tokens % block < block - 1:
            return nothing
        return allocate(request, num_new_tokens, **options)

    def cache_blocks(request: Any, num_computed_tokens: int) -> None:
        # The asynchronous scheduler's, after each token. (What a prompt fills is entered by `allocate_slots`.)
        if num_computed_tokens % block == 0:
            cache(request, num_computed_tokens)

    vars(manager).update(allocate_slots=allocate_slots, cache_blocks=cache_blocks)
