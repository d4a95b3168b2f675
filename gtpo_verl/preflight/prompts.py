"""Tokenizer against model, and prompts against `data.max_prompt_length`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gtpo_verl.configuration.data_checks import read_by_verl
from gtpo_verl.preflight.findings import Finding, Status

_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"


def check_tokenizer(tokenizer: Any, vocabulary: int, has_template: bool = True) -> Finding:
    """Every id the tokenizer can give must have a row in the model's embedding.

    Args:
        vocabulary: rows of the embedding (`vocab_size`); more than the tokenizer has is usual padding.
        has_template: whether there is a chat template, the tokenizer's own or `custom_chat_template`.
    """
    what, key = "tokenizer", "actor_rollout_ref.model.tokenizer_path"
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= vocabulary:
        return Finding(what, Status.FAIL, f"gives ids up to {largest}, the model has {vocabulary}", key=key)
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        # What transformers makes up where tokenizer.json and the like are absent.
        return Finding(what, Status.FAIL, "has no token but special ones: its files are missing", key=key)
    if tokenizer.eos_token_id is None:
        return Finding(what, Status.FAIL, "has no eos token: no response would end", key=key)
    if not has_template:
        return Finding(what, Status.FAIL, "has no chat template", key=_TEMPLATE)
    return Finding(what, Status.OK, f"{len(tokenizer)} tokens, {vocabulary} rows in the model")


def prompt_lengths(
    tokenizer: Any, files: Iterable[Path], prompt_key: str, template: dict[str, Any]
) -> list[int | None]:
    """Tokens of every prompt under the chat template, as verl counts them, None where the template refuses it; equal
    prompts are tokenised once."""
    counted: dict[str, int | None] = {}
    lengths = []
    for file in files:
        for prompt in read_by_verl([file])[prompt_key]:
            text = str(prompt)
            if text not in counted:
                try:
                    ids = tokenizer.apply_chat_template(
                        prompt, add_generation_prompt=True, tokenize=True, return_dict=False, **template
                    )
                    counted[text] = len(ids)
                except Exception:  # verl leaves such a prompt out where it filters
                    counted[text] = None
            lengths.append(counted[text])
    return lengths


def check_prompts(what: str, lengths: Sequence[int | None], longest_allowed: int, filtered: bool) -> Finding:
    """Longest prompt against `data.max_prompt_length`.

    Args:
        filtered: `data.filter_overlong_prompts`: verl drops longer ones at the start; otherwise they stay and the
            response loses the room they take.
    """
    known = [length for length in lengths if length is not None]
    too_long, refused = sum(length > longest_allowed for length in known), len(lengths) - len(known)
    detail = f"{len(lengths)} prompts, the longest has {max(known, default=0)} of {longest_allowed} tokens"
    if refused:
        detail += f"; the chat template refuses {refused}"
        bad = refused == len(lengths) or not filtered
        return Finding(what, Status.FAIL if bad else Status.WARN, detail, key=_TEMPLATE)
    if not too_long:
        return Finding(what, Status.OK, detail)
    detail += f"; {too_long} are longer"
    if too_long == len(lengths):
        return Finding(what, Status.FAIL, detail, key="data.max_prompt_length")
    if filtered:
        return Finding(what, Status.WARN, f"{detail} and left out", key="data.max_prompt_length")
    return Finding(what, Status.FAIL, detail, key="data.filter_overlong_prompts")
