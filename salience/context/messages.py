"""A message is a function of its segment and the bytes it names, so a cold process sends what a warm one would."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from salience.model.bundle import Segment
from salience.model.message import CompiledMessage, ModelResponse, TextBlock, ToolResultBlock
from salience.model.text import decode


def message_of(segment: Segment, data: bytes) -> CompiledMessage | None:
    """The message of one segment.

    Args:
        segment: what is to be shown, and how.
        data: the bytes at `segment.digest`.

    Returns:
        None for the tool contracts, which a provider takes beside the messages.
    """
    match segment.render:
        case "tools":
            return None
        case "text":
            return CompiledMessage(role=segment.role, content=(TextBlock(text=decode(data)),), label=segment.label)
        case "response":
            return CompiledMessage(
                role=segment.role, content=ModelResponse.model_validate_json(data).content, label=None
            )
        case "result":
            result = ToolResultBlock(
                tool_call_id=segment.tool_call_id or "",
                text=decode(data),
                output_ref=segment.output_ref,
                is_error=segment.is_error,
                truncated=segment.truncated,
            )
            return CompiledMessage(role=segment.role, content=(result,), label=segment.label)


def compile_messages(segments: Iterable[Segment], text_of: Callable[[str], bytes]) -> tuple[CompiledMessage, ...]:
    """The messages of a bundle, in its order.

    Args:
        segments: the bundle's segments.
        text_of: gives the bytes of a digest.

    Raises:
        KeyError: from `text_of`, for a digest it does not have.
    """
    compiled: list[CompiledMessage] = []
    for segment in segments:
        if segment.render == "tools":
            continue
        message = message_of(segment, text_of(segment.digest))
        if message is not None:
            compiled.append(message)
    return tuple(compiled)
