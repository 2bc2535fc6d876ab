"""A count is exact where the model's table is at hand, else conservative; a text is counted once (spec CTX-6).

Tables are never downloaded: a build has no network. The ones litellm ships in its package are used, under the names
tiktoken's cache gives them. Loading one takes up to half a second and tens of megabytes, so it happens at the first
count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from salience.context.estimate import ESTIMATE_VERSION, estimate
from salience.model.canonical import canonical_json
from salience.model.message import ModelResponse, ReasoningBlock, TextBlock, ToolCallBlock
from salience.model.tool import ToolSpec

MESSAGE_OVERHEAD = 4
"""Tokens of the frame of one message, as OpenAI documents it for chat models."""
LABEL_OVERHEAD = 24
"""Tokens of the fence an adapter puts round data that is not the user's words."""
CALL_OVERHEAD = 12
"""Tokens of the frame of one tool call: type, id and function wrapper."""
TOOL_OVERHEAD = 12
"""Tokens of the frame of one tool schema."""
REPLY_OVERHEAD = 3
"""Tokens that open the answer."""

_TABLE_FILES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}
"""The sha1 of a table's address is its file name in tiktoken's cache."""
_SAME_TABLE = {"o200k_harmony": "o200k_base"}
_SLICE = 50_000
"""Characters encoded at once; tiktoken's splitting expression needs time that grows faster than a text of blanks."""
_COUNTABLE = 4_000_000
"""A longer text is not counted: at two bytes a token it fits no window, and counting would stall the turn."""
_CACHED = 50_000


class Tokenizer:
    """Counts tokens of texts, caching by content.

    Attributes:
        name: what stands in the bundle; two tokenizers of one name count alike.
    """

    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self._count = count
        self._counts: dict[tuple[str, str], int] = {}

    def text(self, text: str, key: str = "") -> int:
        """Tokens of a text; `key` is its digest, without which nothing is cached."""
        if not key:
            return self._of(text)
        return self._cached("text", key, lambda: self._of(text))

    def lines(self, text: str) -> int:
        """Tokens of a text counted line by line: never fewer than `text` says, and cheap when few lines are new."""
        return sum(self._cached("line", line, lambda line=line: self._of(line)) + 1 for line in text.split("\n"))

    def response(self, response: ModelResponse, key: str) -> int:
        """Tokens of what a model said, with its calls and what it must be given back of its reasoning."""
        return self._cached("response", key, lambda: sum(map(self._block, response.content)))

    def tools(self, tools: tuple[ToolSpec, ...], key: str) -> int:
        """Tokens of tool contracts as schemas."""
        return self._cached("tools", key, lambda: sum(map(self._tool, tools)))

    def _tool(self, tool: ToolSpec) -> int:
        schema = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return self._of(canonical_json(schema).decode()) + TOOL_OVERHEAD

    def _block(self, block: object) -> int:
        match block:
            case TextBlock(text=text):
                return self._of(text)
            case ToolCallBlock(name=name, args=args, raw_args=raw):
                written = raw if raw is not None else canonical_json(args).decode()
                return self._of(name) + self._of(written) + CALL_OVERHEAD
            case ReasoningBlock(data=data):
                return self._of(canonical_json(data).decode())
            case _:
                return 0

    def _of(self, text: str) -> int:
        if len(text) > _COUNTABLE:
            return len(text.encode()) // 2
        return self._count(text)

    def _cached(self, kind: str, key: str, count: Callable[[], int]) -> int:
        found = self._counts.get((kind, key))
        if found is None:
            if len(self._counts) >= _CACHED:
                self._counts.clear()
            found = self._counts[kind, key] = count()
        return found


@lru_cache(maxsize=64)
def tokenizer_for(model: str) -> Tokenizer:
    """The tokenizer of a model: exact for OpenAI's own when its table is at hand, else the estimate.

    Args:
        model: `provider/model` or `script:FILE`.
    """
    table = _table_of(model)
    if table is None or _folder_of(table) is None:
        return _estimate()
    return _exact(table)


@lru_cache(maxsize=1)
def _estimate() -> Tokenizer:
    return Tokenizer(ESTIMATE_VERSION, estimate)


@lru_cache(maxsize=8)
def _exact(table: str) -> Tokenizer:
    encode: Callable[[str], list[int]] | None = None

    def count(text: str) -> int:
        nonlocal encode
        if encode is None:
            encode = _load(table)
        if len(text) <= _SLICE:
            return len(encode(text))
        return sum(len(encode(text[at : at + _SLICE])) for at in range(0, len(text), _SLICE))

    return Tokenizer(table, count)


def _table_of(model: str) -> str | None:
    if model.startswith("script:"):
        return None
    from tiktoken.model import encoding_name_for_model  # 30 ms that the scripted model need not pay

    try:
        name = encoding_name_for_model(model.rsplit("/", 1)[-1])
    except KeyError:
        return None
    name = _SAME_TABLE.get(name, name)
    return name if name in _TABLE_FILES else None


def _folder_of(table: str) -> Path | None:
    """The folder with the table: the one the environment names, else litellm's, found without importing it."""
    candidates = [Path(named)] if (named := os.environ.get("TIKTOKEN_CACHE_DIR")) else []
    spec = find_spec("litellm")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")
    return next((folder for folder in candidates if (folder / _TABLE_FILES[table]).is_file()), None)


def _load(table: str) -> Callable[[str], list[int]]:
    import tiktoken

    folder = _folder_of(table)
    if folder is not None:
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    return tiktoken.get_encoding(table).encode_ordinary
