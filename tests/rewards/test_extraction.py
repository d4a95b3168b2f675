from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.rewards.extraction import READ_CHARS, extract_answer
from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.prompts import dapo_prompt


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Answer: x", "x"),
        ("Answer : x", "x"),
        ("**Answer**: **x**", "x"),
        ("__Answer:__ x", "x"),
        ("> Answer: x", "x"),
        ("Answer: x\nAnswer: y", "y"),
        ("Answer: x Answer: y", "y"),
        ("Answer:\n\n  x\n y", "x"),
        ("Answer:", ""),
        ("Answer: x\nAnswer: ", ""),
        ("Answer: **\n", ""),
        ("Answer: \\boxed{x} and more", "x"),
        ("Answer: \\boxed{a\nb}", "a\nb"),
        ("Answer: \\boxed{a", ""),
        ("non-answers: x", None),
        ("myanswer: x", None),
        ("the answer is x", None),
        ("\\boxed{x}", "x"),
        ("\\boxed{x} \\boxed{y", "x"),
        ("\\boxed{\\{x\\}}", "\\{x\\}"),
        ("\\\\boxed{x}", "x"),
        ("} \\boxed{x}", "x"),
        ("\\boxed{a{b{c}d}e}", "a{b{c}d}e"),
        ("x", None),
        ("", None),
    ],
)
def test_what_counts_as_the_answer(response: str, answer: str | None) -> None:
    assert extract_answer(response) == answer


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<end_of_turn>", "<|eot_id|>"])
def test_tokens_that_end_a_turn_are_no_part_of_the_answer(token: str) -> None:
    assert extract_answer(f"Answer: 13{token}") == "13"
    assert extract_answer(f"Answer: $13$.{token}{token}\n") == "13"


def test_only_the_end_of_a_long_response_is_read() -> None:
    assert extract_answer("Answer: 13" + " " * READ_CHARS) is None
    assert extract_answer("x" * READ_CHARS + "Answer:13") is None  # the word before must end
    assert extract_answer("x" * READ_CHARS + "\nAnswer: 13") == "13"


@given(st.text(max_size=300))
@settings(deadline=None)
def test_any_text_is_read_and_normalising_twice_changes_nothing(text: str) -> None:
    extract_answer(text)
    answer = normalize_answer(text)
    assert "\n" not in answer
    assert extract_answer(f"Answer: {text}") is None or isinstance(extract_answer(f"Answer: {text}"), str)


@given(st.text(st.sampled_from("Answer: \n$*\\boxed{}13<|>"), max_size=200))
@settings(deadline=None)
def test_pieces_of_the_format_in_any_order_are_read(text: str) -> None:
    assert extract_answer(text) is None or isinstance(extract_answer(text), str)


def test_the_prompt_asks_for_what_is_read_and_keeps_braces_of_the_problem() -> None:
    prompt = dapo_prompt(r"What is \frac{1}{2}+{x}?")
    assert prompt.startswith("Solve the following math problem step by step. The last line of your response")
    assert r"What is \frac{1}{2}+{x}?" in prompt
    assert prompt.endswith('Remember to put your answer on its own line after "Answer:".')


TAGS = [
    ("<think>", "</think>"),
    ("<Thinking>", "</Thinking>"),
    ("< reasoning >", "</ reasoning >"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
]


@pytest.mark.parametrize(("begin", "end"), TAGS)
@given(thought=st.text(st.sampled_from("Answer: 13\\n\\boxed{}$"), max_size=60))
@settings(deadline=None)
def test_no_thought_holds_an_answer(begin: str, end: str, thought: str) -> None:
    thought = f"{thought}\nAnswer: 13"
    assert extract_answer(f"{begin}{thought}{end}") is None
    assert extract_answer(f"{thought}{end}") is None
    assert extract_answer(f"{begin}{thought}") is None
    assert extract_answer(f"{begin}{thought}{end}\nAnswer: 14") == "14"
    assert extract_answer(f"{thought}{end}\nAnswer: 14") == "14"
    assert extract_answer(f"{begin}{thought}{end}\nAnswer: 14\n{begin}{thought}") == "14"


def test_a_thought_longer_than_what_is_read_is_one() -> None:
    long = "so " * READ_CHARS
    assert extract_answer(f"<think>{long}\nAnswer: 13") is None
    assert extract_answer(f"<think>{long}</think>\nAnswer: 13") == "13"
    assert extract_answer("<think>" * 300_000 + "Answer: 13") is None
    assert extract_answer("</think>" * 300_000 + "Answer: 13") == "13"
    assert extract_answer("<" * 1_000_000 + "Answer: 13") == "13"
    assert extract_answer("Answer: " + r"\boxed{Answer: " * 20_000 + "13" + "}" * 20_000) == "13"


@pytest.mark.parametrize("tag", ["answer", "final_answer", "response", "solution", "output"])
def test_tags_of_a_template_are_no_part_of_an_answer(tag: str) -> None:
    for response in (f"Answer: <{tag}>13</{tag}>", f"<{tag}>\nAnswer: 13\n</{tag}>", f"Answer: 13</{tag}>"):
        assert extract_answer(response) == "13"
    assert extract_answer("Answer: a<b>c") == "a<b>c"
