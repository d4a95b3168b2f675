"""The prompt that DAPO-Math-17k was published with; `gtpo_verl.rewards.extraction` reads what it asks for."""

from __future__ import annotations

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def dapo_prompt(problem: str) -> str:
    """DAPO's prompt for one problem. Braces in ``problem`` stay as they are."""
    return DAPO_PROMPT.replace("{problem}", problem)
