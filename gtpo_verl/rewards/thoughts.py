"""What a thinking model wrote for itself, and the tags of chat templates: no part of what it answers."""

from __future__ import annotations

import re

_NAMES = r"think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|inner_monologue|seed:think"
# Qwen and DeepSeek, Cohere, Mistral, Kimi, others; the last pair is gpt-oss's, whose thoughts, and calls of tools, are
# channels of their own.
_OPENING = (
    rf"<\|?\s*(?:START_)?(?:{_NAMES})(?:\s[^<>]{{0,80}})?\|?>|\[THINK\]|◁think▷"
    r"|<\|(?:begin_of_thought|channel\|>(?:analysis|commentary)[^<]{0,80}<\|message)\|>"
)
_CLOSING = (
    rf"<\|?\s*(?:/|END_)\s*(?:{_NAMES})\s*\|?>|\[/THINK\]|◁/think▷"
    r"|<\|(?:end_of_thought|channel\|>final[^<]{0,80}<\|message)\|>"
)
_THOUGHT_TAG = re.compile(rf"({_OPENING})|{_CLOSING}", re.IGNORECASE)

# Tokens that end a turn, in the spellings of the model families people train (DeepSeek's bar is wide), and the tags
# that a template asks for around an answer. ``a<b>c`` is mathematics, so that one-letter tags need their end.
_TEMPLATE_TAG = re.compile(
    r"(?:<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|</?s>|<(?:eos|bos|pad|unk|end_of_turn|start_of_turn|eot_id)>|\[/?INST\]"
    r"|<\s*/?\s*(?:final[_-]?answer|answer|response|solution|output|result|final|boxed|strong|em|center|code|pre|div"
    r"|span|br)(?:\s[^<>]{0,80})?/?\s*>|</[bipu]>)+",
    re.IGNORECASE,
)
_ONE_LETTER_PAIR = re.compile(r"<([bipu])>(?=[^<>]*</\1>)", re.IGNORECASE)


def without_thoughts(response: str) -> str:
    """What is left of a response when its thoughts are taken out.

    A closing tag without an opening one ends a thought that the prompt began: everything before it goes. An opening
    tag without a closing one begins a thought that was cut off: everything after it goes.
    """
    kept: list[str] = []
    begin: int | None = 0  # of the text after a thought; None inside one
    for tag in _THOUGHT_TAG.finditer(response):
        if tag[1]:
            if begin is not None:
                kept.append(response[begin : tag.start()])
            begin = None
        else:
            if begin is not None:
                kept.clear()
            begin = tag.end()
    if begin is not None:
        kept.append(response[begin:])
    return "\n".join(kept)


def without_tags(text: str) -> str:
    """Takes special tokens and tags around an answer off a text; what one keeps apart is never put together."""
    if "<" not in text and "[" not in text:
        return text
    return _TEMPLATE_TAG.sub(_gap, _ONE_LETTER_PAIR.sub(_gap, text))


def _gap(tag: re.Match[str]) -> str:
    """The end of a line where letters or digits stand on both sides: ``1<br>3`` and ``1</s>3`` are not 13."""
    before, after = tag.string[: tag.start()][-1:], tag.string[tag.end() :][:1]
    return "\n" if before.isalnum() and (after.isalnum() or after in tuple(".,:/^_")) else ""
