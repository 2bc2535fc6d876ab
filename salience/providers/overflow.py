"""Sizes are read from a provider's words: which number is the prompt, which the output, which the limit.

No list of wordings is complete, so a text is read by its parts: what is said to be too large (input, output, something
else), what it is measured against, and how the numbers stand to each other. The numbers overrule the words: a prompt
that fits is never called an overflow (spec CMP-3, CMP-9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

SMALLEST_SIZE = 128
"""Smaller numbers in an error are codes, counts and prices, not sizes of a window."""
SPARE_TOKENS = 64
"""A prompt that leaves fewer tokens than this leaves no answer: it has to shrink, not the output."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text says of sizes; `kind` is None when it speaks of something else."""

    kind: Literal["context_overflow", "lower_output_needed"] | None = None
    prompt_tokens: int | None = None
    limit_tokens: int | None = None


_N = r"(\d[\d,_]*)"
_OVERFLOW_CODE = re.compile(
    r"context.?(?:length|window|size).?(?:exceed|overflow)|exceed\w*.context|prompt.?tokens.?exceed|"
    r"prompt.?too.?long|input.?too.?long"
)
_OUTPUT_NAME = (
    r"max[_ ](?:completion[_ ]|new[_ ]|output[_ ])?tokens|max(?:imum)? (?:output|completion|"
    r"new) tokens|maximum tokens you requested|num_predict|maxoutputtokens"
)
_OUTPUT = re.compile(_OUTPUT_NAME)
# What is measured in something that no compaction makes smaller.
_OTHER = re.compile(
    r"\bimage|pixel|\bpdf|\baudio|\bvideo|\bfile (?:size|is)|\d ?[km]b\b|bytes|array|too many (?:tools|"
    r"messages|images|stop)|"
    r"maximum (?:of )?\d+ (?:tools|images|items|messages)|tools?\.\d+|\.(?:id|name)\b|_id\b|description|"
    r"cached? content|start caching|schema|function name|stop sequence"
)
_TOKENS_EXCEED = r"tokens?\b[^.]{0,60}\bexceed|exceed[^.]{0,60}\btokens?\b"
_INPUT = r"(?:prompts?|inputs?|messages?|requests?|conversation|history|context|text|sequence|tokens?|query|content)"
_EXCEEDS = (
    r"(?:exceed\w*|too (?:long|large|big|many)|longer|larger|greater|bigger|more than|over(?:flow\w*|run|"
    r")\b|beyond|surpass\w*|"
    r"(?:does|do|will|can|could|would|did)(?: not|n.t|not) (?:be |possibly )?fit|cannot fit|outside|above|past the|"
    r"ran out|run out|out of (?:context|tokens|range)|not enough|insufficient|maximum|limit|"
    r"(?:must|should|may|can) (?:be|have) (?:at most|less|no more|fewer|short|small|below|under|within|<|"
    r"\[)|must be <=|"
    r"at most|reduce|shorten|truncate|>)"
)
_SAYS_OVERFLOW = (
    re.compile(r"(?:上下文|输入|提示|消息|长度|token).{0,30}(?:超出|超过|超限|过长|超长|太长|最大)"),
    re.compile(rf"{_INPUT}\b.{{0,120}}{_EXCEEDS}", re.S),
    re.compile(rf"{_EXCEEDS}.{{0,80}}\b{_INPUT}\b", re.S),
)
_MEASURED = re.compile(
    r"\bcontext(?:s|_\w+)?\b|tokens?\b|n_ctx|上下文|长度|(?:prompt|input|message|conversation|request|text|query|"
    r"history)s?\b.{0,60}(?:too (?:long|large|big)|length|longer)|"
    r"reduce the (?:length|size|number)|shorter (?:prompt|input)|maximum (?:input|prompt|sequence|"
    r"model) (?:length|size)|sequence length",
    re.S,
)
# Weak words tell nothing alone, but two sizes beside them are a comparison.
_COMPARES = re.compile(
    r"\bonly\b|up to|\bmax\b|but (?:got|the|has|have|requested)|\bhave\b|available|"
    r"supports?|requested"
)
# Words that speak of tokens, context or length without anything being too large.
_NOT_SIZE = re.compile(
    r"(?:invalid|unexpected|special|auth\w*|access|bearer|stop|api|csrf|expired) token|minimum token|"
    r"next token|token id"
)

_FORMULA = re.compile(rf"{_N}\s*\+\s*{_N}\s*(?:>|exceeds?|is (?:more|greater) than)\s*{_N}")
_REMAINDER = re.compile(rf"{_N}\s*>\s*{_N}\s*-\s*{_N}")
_FIELD_PROMPT = re.compile(r"n_prompt_tokens\D{1,5}(\d+)|prompt_tokens[\"']?\s*[:=(]\s*(\d+)")
_FIELD_LIMIT = re.compile(
    r"\bn_ctx[\"']?\s*[:=(]\s*(\d+)|(?:max_model_len|max_context_length|context_length)[\"']?\s*[:=]\s*(\d+)"
)
_RANGE = re.compile(r"\[\s*\d+\s*,\s*(\d+)\s*\]")
_OUTPUT_PART = re.compile(
    rf"{_N} (?:tokens? )?(?:(?:in|of|for|from) (?:the |your )?)?`?(?:completion|output|generation|"
    rf"generated|response|answer|reply|max_\w*tokens|new tokens)|"
    rf"{_N} (?:requested )?(?:output|completion|new|generated) tokens|"
    rf"(?:max_tokens|max_new_tokens|max_completion_tokens|"
    rf"output tokens)[`'\")]*(?: is too large)?\s*(?:[:=(]|of|is)?\s*{_N}"
)
_INPUT_PART = re.compile(
    rf"{_N} (?:tokens? )?(?:(?:in|of|for|from) (?:the |your )?)?`?(?:messages?|functions?|tools?|"
    rf"text input|image input|inputs?|prompt|input tokens|prompt tokens|input messages|history)\b|"
    rf"(?:prompt|input|messages)(?: (?:has|have|of|is|with|uses?|tokens?|length))*\s*[:=(]?\s*{_N}"
)
_LIMIT = re.compile(
    rf"(?:maximum|max|limit|window|context (?:length|size)|length|n_ctx|capacity|supports?|allow\w*|up to|"
    rf"at most|<=?|only)"
    rf"(?: [a-z_]+){{0,5}}?[`'\")]*\s*(?:of|is|are|was|to|:|=|<=|\()?\s*\(?{_N}(?: tokens?)?|"
    rf"{_N}(?:[ -]tokens?)? (?:maximum|max|limit|(?:context )?window|context|allowed)"
)
# A single number is believed only with its unit or its verb: "exceeds limit (2013)" is an error code.
_SOLE_LIMIT = re.compile(
    rf"(?:maximum|max|limit|window|context (?:length|size)|input length)(?: [a-z]+){{0,4}}? (?:of|is|to)\s*:?\s*{_N}|"
    rf"{_N}[ -]tokens? (?:context|maximum|limit|window)|(?:limit|maximum)[\w ]{{0,20}}[:(]\s*{_N} tokens"
)
_NUMBER = re.compile(
    r"(?<![\w.\-/])(?<!\d,)(\d[\d,_]*)(?!\w|\.\d|-(?!token))(?! ?(?:%|ms|seconds?|minutes?|mb|kb|bytes))"
)
_CODE = re.compile(r"(?:code|status|error|http|request[_ ]id)\W{0,4}$")


def read_sizes(message: str, codes: Iterable[str] = ()) -> Reading:
    """What an error says of sizes.

    Args:
        message: the provider's words.
        codes: machine-readable codes and types beside them.

    Returns:
        The reading; sizes in tokens where the text gives them, and never a limit that the prompt does not exceed
        together with kind `context_overflow`.
    """
    text = message.lower()
    coded = any(_OVERFLOW_CODE.search(code.lower()) or code == "model_context_window_exceeded" for code in codes)
    coded = coded or _OVERFLOW_CODE.search(text.replace(" ", "_")) is not None
    if not coded and (_NOT_SIZE.search(text) or not _MEASURED.search(text)):
        return Reading()
    said = coded or any(pattern.search(text) for pattern in _SAYS_OVERFLOW)
    if not said and not (_COMPARES.search(text) and len(_bare_sizes(text)) >= 2):
        return Reading()
    prompt, output, limit = _sizes(text)
    if prompt is not None and limit is not None and output is not None:
        fits = prompt + SPARE_TOKENS <= limit
        return Reading("lower_output_needed" if fits else "context_overflow", prompt, limit)
    if (
        not coded
        and _OTHER.search(text)
        and not re.search(rf"prompt (?:is )?too long|context (?:length|window)|{_TOKENS_EXCEED}", text)
    ):
        return Reading()
    about_output = _OUTPUT.search(text) or (_OUTPUT_PART.search(text) and not _INPUT_PART.search(text))
    if about_output and not _about_input(text):
        return Reading("lower_output_needed")
    if prompt is None and limit is None:
        prompt, limit = _compared(text)
    elif prompt is None and limit is not None:
        above = [size for size in _bare_sizes(text) if size > limit]
        prompt = above[0] if len(above) == 1 else None
    if prompt is not None and limit is not None and prompt <= limit:
        # Numbers that contradict the words are no sizes of this prompt; a wrong limit would shrink the window for good.
        prompt = limit = None
    return Reading("context_overflow", prompt, limit)


def _compared(text: str) -> tuple[int | None, int | None]:
    """Prompt and limit from numbers without labels of their own: of two that are compared, the larger is the prompt."""
    sizes = _bare_sizes(text)
    if len(sizes) == 1:
        return None, _size(*found.groups()) if (found := _SOLE_LIMIT.search(text)) else None
    if len(sizes) < 2:
        return None, None
    called_limits = {_size(*found.groups()) for found in _LIMIT.finditer(text)} & set(sizes)
    prompt = max(sizes)
    if len(sizes) == 2 and (min(sizes) in called_limits or min(sizes) * 20 > prompt):
        return prompt, min(sizes)
    # A limit that is too low would shrink the window for good; without a clear one there is none.
    below = called_limits - {prompt}
    return prompt, below.pop() if len(below) == 1 else None


def _about_input(text: str) -> bool:
    """Whether a text that names the output parameter complains of the input as well."""
    rest = _OUTPUT.sub(" ", text).replace("input validation error", " ")
    return bool(
        re.search(
            r"(?:prompt|input|inputs|messages|context|conversation|history)\b[^.]{0,60}(?:exceed|"
            r"too (?:long|large)|limit|longer|<=|must)|"
            r"shorter prompt|shorten|too many tokens|exceed\w*[^.]{0,40}(?:context|input|prompt)",
            rest,
        )
    )


def _sizes(text: str) -> tuple[int | None, int | None, int | None]:
    """Prompt, output and limit as far as the text labels them."""
    if found := _FORMULA.search(text):
        return _size(found[1]), _size(found[2]), _size(found[3])
    if found := _REMAINDER.search(text):
        return _size(found[3]), _size(found[1]), _size(found[2])
    prompt = _size(*found.groups()) if (found := _FIELD_PROMPT.search(text)) else None
    limit = _size(*found.groups()) if (found := _FIELD_LIMIT.search(text)) else None
    if limit is None and (found := _RANGE.search(text)):
        limit = _size(found[1])
    outputs = [size for found in _OUTPUT_PART.finditer(text) if (size := _count(*found.groups())) is not None]
    inputs = [size for found in _INPUT_PART.finditer(text) if (size := _count(*found.groups())) is not None]
    if outputs and inputs:
        prompt, output = sum(inputs), outputs[0]
        if limit is None:
            limit = next(
                (s for found in _LIMIT.finditer(text) if (s := _size(*found.groups())) and s not in (*inputs, prompt)),
                None,
            )
        if limit is None:
            limit = min((s for s in _bare_sizes(text) if s not in (*inputs, *outputs)), default=None)
        return prompt, output, limit
    return prompt, None, limit


def _bare_sizes(text: str) -> list[int]:
    """All numbers of a text that may be sizes, without repeats, in order."""
    sizes: list[int] = []
    for found in _NUMBER.finditer(text):
        size = _size(found[1])
        if size is not None and size not in sizes and not _CODE.search(text[: found.start()]):
            sizes.append(size)
    return sizes


def _count(*groups: str | None) -> int | None:
    digits = re.sub(r"\D", "", next((group for group in groups if group), ""))
    return int(digits) if digits and len(digits) <= 9 else None


def _size(*groups: str | None) -> int | None:
    count = _count(*groups)
    return count if count is not None and count >= SMALLEST_SIZE else None
