"""Thoughts written into plain text are no part of the answer, and quoted tags are no thoughts (spec ONT-3)."""

from __future__ import annotations

import re

_LEADING_THOUGHT = re.compile(r"\s*<(think|thinking|reasoning)>(.*?)(?:</\1>|\Z)", re.S | re.I)
_LATER_THOUGHT = re.compile(r"^[ \t]*<(think|thinking)>(.*?)</\1>[ \t]*\n?", re.S | re.I | re.M)
_ORPHAN_END = re.compile(r"(.*?)</think(?:ing)?>\s*", re.S | re.I)


def split_thinking(text: str) -> tuple[str, str]:
    """A text without its `<think>` parts, and these; a template that opens the tag itself leaves only its end."""
    thoughts: list[str] = []
    if "<think" not in text.lower() and len(re.findall(r"</think(?:ing)?>", text, re.I)) == 1:
        found = _ORPHAN_END.match(text)
        # Inside backticks the tag is what the answer speaks of.
        if found and "`" not in found[1].rsplit("\n", 1)[-1] and found[1].count("```") % 2 == 0:
            return text[found.end() :], found[1].strip()
    while found := _LEADING_THOUGHT.match(text):
        thoughts.append(found[2].strip())
        text = text[found.end() :].lstrip("\n")
    kept: list[str] = []
    end = 0
    for found in _LATER_THOUGHT.finditer(text):
        if text.count("```", 0, found.start()) % 2 == 0:
            kept.append(text[end : found.start()])
            thoughts.append(found[2].strip())
            end = found.end()
    return "".join((*kept, text[end:])), "\n".join(thought for thought in thoughts if thought)
