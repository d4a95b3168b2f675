"""A Qwen2 model small enough to train on a laptop, its byte-level tokenizer, and its supervised warm-up.

The warm-up ends when the model, *sampled at temperature 1* on problems it has not seen, is right often enough to learn
from and wrong often enough to improve. A rule on samples, unlike a number of steps, means the same on every machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from gtpo_verl.tasks import arithmetic
from gtpo_verl.tasks.muon import Muon

PAD_TOKEN, BOS_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class WarmupError(RuntimeError):
    """The warm-up missed its target accuracy."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the Qwen2 model; head size is ``hidden_size / num_attention_heads`` (vLLM on CPU wants 32, 64, ...)."""

    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 512


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised warm-up.

    Attributes:
        learning_rate: peak rate, reached linearly over ``rise_steps`` optimizer steps and then held.
        batch_size: worked solutions per step.
        target_accuracy: stop once sampling at temperature 1 is right this often.
        acceptable: accuracies between which a model is usable.
        probe_every: optimizer steps between two measurements.
        probe_problems: held-out problems per measurement, one sample each.
        max_steps: give up after so many steps.
        max_response_length: tokens sampled per problem at most.
    """

    learning_rate: float = 6e-3
    rise_steps: int = 20
    batch_size: int = 32
    target_accuracy: float = 0.38
    acceptable: tuple[float, float] = (0.30, 0.60)
    probe_every: int = 20
    probe_problems: int = 256
    max_steps: int = 2000
    max_response_length: int = 96


@dataclass
class WarmupResult:
    """What the warm-up measured; accuracies are shares of 1, lengths in tokens, entropies in nats."""

    steps: int
    accuracy: float
    seconds: float
    cpu_seconds: float
    history: list[dict[str, float]] = field(default_factory=list)


def build_tokenizer() -> PreTrainedTokenizerBase:
    """Return a ChatML tokenizer with one token per byte: 256 bytes and three special tokens, no merges.

    Text in Unicode normal form C survives encoding and decoding unchanged (Qwen2's tokenizer normalises).
    """
    special = [PAD_TOKEN, BOS_OF_TURN, END_OF_TURN]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=PAD_TOKEN,
        pad_token=PAD_TOKEN,
        eos_token=END_OF_TURN,
        bos_token=None,
        additional_special_tokens=[BOS_OF_TURN, END_OF_TURN],
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """Return a freshly initialised fp32 model, drawn from torch's global random state."""
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the token ids of a one-turn chat up to where the model's reply begins."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    return tokenizer.encode(text, add_special_tokens=False)


@dataclass
class Samples:
    """Sampled replies: ``texts``, and per reply its length in tokens and its mean token entropy in nats."""

    texts: list[str]
    lengths: list[int]
    entropies: list[float]


@torch.no_grad()
def sample(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_new_tokens: int
) -> Samples:
    """Sample one reply per prompt at temperature 1 from the full distribution, using torch's global random state."""
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    width = max(map(len, encoded))
    input_ids = torch.full((len(encoded), width), tokenizer.pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(encoded):
        input_ids[row, width - len(ids) :] = torch.tensor(ids)
        attention_mask[row, width - len(ids) :] = 1
    output: Any = model.generate(  # type: ignore[misc]
        input_ids=input_ids,
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    replies = output.sequences[:, width:]
    log_probs = torch.stack(output.logits, dim=1).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)  # (prompts, tokens)
    texts, lengths, entropies = [], [], []
    for ids, row in zip(replies, entropy, strict=True):
        ended = (ids == tokenizer.eos_token_id).nonzero()
        length = int(ended[0]) + 1 if len(ended) else len(ids)
        texts.append(str(tokenizer.decode(ids[:length], skip_special_tokens=True)))
        lengths.append(length)
        entropies.append(row[:length].mean().item())
    return Samples(texts, lengths, entropies)


def _batches(
    tokenizer: PreTrainedTokenizerBase, pairs: Iterator[tuple[str, str]], batch_size: int, ignore_index: int = -100
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (input_ids, labels), both (batch_size, longest) int64; only replies and their end are predicted."""
    while True:
        items = []
        for _ in range(batch_size):
            prompt, solution = next(pairs)
            prompt_ids = encode_prompt(tokenizer, prompt)
            reply_ids = [*tokenizer.encode(solution, add_special_tokens=False), tokenizer.eos_token_id]
            items.append((prompt_ids, reply_ids))
        longest = max(len(prompt_ids) + len(reply_ids) for prompt_ids, reply_ids in items)
        input_ids = torch.full((batch_size, longest), tokenizer.pad_token_id)
        labels = torch.full((batch_size, longest), ignore_index)
        for row, (prompt_ids, reply_ids) in enumerate(items):
            end = len(prompt_ids) + len(reply_ids)
            input_ids[row, :end] = torch.tensor(prompt_ids + reply_ids)
            labels[row, len(prompt_ids) : end] = torch.tensor(reply_ids)
        yield input_ids, labels


def warm_up(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    config: WarmupConfig,
    task: arithmetic.ArithmeticConfig,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> WarmupResult:
    """Train ``model`` in place on worked solutions until sampling at temperature 1 reaches the target accuracy.

    Draws from torch's global random state. ``progress`` is called with each measurement: ``step``, ``loss``,
    ``accuracy``, ``length``, ``entropy``, ``seconds``.

    Raises:
        WarmupError: the target was not reached within ``max_steps``, or the accuracy leapt past the acceptable range.
    """
    probe = arithmetic.distinct_problems("probe", config.probe_problems, seed, task)
    # Muon needs several times fewer steps here than AdamW, which keeps the rest: embeddings, biases, norms.
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        Muon(matrices, lr=config.learning_rate),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    batches = _batches(tokenizer, arithmetic.corpus(seed, task), config.batch_size)
    started, cpu_started = time.monotonic(), time.process_time()
    history: list[dict[str, float]] = []
    loss = torch.tensor(math.nan)
    for step in range(1, config.max_steps + 1):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(1.0, step / config.rise_steps)
        input_ids, labels = next(batches)
        model.train()
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % config.probe_every:
            continue
        model.eval()
        samples = sample(model, tokenizer, [problem.prompt for problem in probe], config.max_response_length)
        right = [arithmetic.extract_answer(t) == str(p.answer) for t, p in zip(samples.texts, probe, strict=True)]
        measured = {
            "step": step,
            "loss": loss.item(),
            "accuracy": sum(right) / len(right),
            "length": sum(samples.lengths) / len(right),
            "entropy": sum(samples.entropies) / len(right),
            "seconds": time.monotonic() - started,
        }
        history.append(measured)
        if progress:
            progress(measured)
        if measured["accuracy"] >= config.target_accuracy:
            if measured["accuracy"] > config.acceptable[1]:
                raise WarmupError(f"accuracy leapt to {measured['accuracy']:.2f}; lower learning_rate or probe_every")
            return WarmupResult(
                steps=step,
                accuracy=measured["accuracy"],
                seconds=measured["seconds"],
                cpu_seconds=time.process_time() - cpu_started,
                history=history,
            )
    raise WarmupError(
        f"after {config.max_steps} steps sampling is right {history[-1]['accuracy'] if history else math.nan:.2f} "
        f"of the time, short of {config.target_accuracy:.2f}"
    )


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model, generation configuration and tokenizer in Hugging Face's layout."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
