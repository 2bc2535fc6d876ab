"""A message is canonical typed blocks, bound to no provider's format (spec ONT-3, ONT-11)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from salience.model.frozen import Frozen, Names, type_of_sequence

Role = Literal["system", "developer", "user", "assistant", "tool", "summary", "custom"]
CallStatus = Literal["pending", "running", "success", "error"]
Source = Literal["user", "model", "tool", "memory", "summary", "system", "project"]


class TextBlock(Frozen):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class FileRefBlock(Frozen):
    """A file named instead of quoted."""

    type: Literal["file_ref"] = "file_ref"
    uri: str
    summary: str | None = None


class ImageRefBlock(Frozen):
    """An image kept as an artifact."""

    type: Literal["image_ref"] = "image_ref"
    uri: str
    media_type: str = "image/png"


class ToolCallBlock(Frozen):
    """One call the model asks for; `raw_args` holds the arguments as text when they were no JSON object."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    raw_args: str | None = None


class ToolResultBlock(Frozen):
    """What a call gave: the text a model sees and where the whole of it is kept."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    text: str = ""
    output_ref: str | None = None
    is_error: bool = False
    truncated: bool = False


class SummaryBlock(Frozen):
    """Distilled history; never the user's words (spec CTX-10)."""

    type: Literal["summary"] = "summary"
    summary_id: str
    text: str


class ReasoningBlock(Frozen):
    """Opaque provider data needed to continue a call: never shown, never evidence, only returned to who made it."""

    type: Literal["reasoning"] = "reasoning"
    provider: str
    model: str
    data: dict[str, Any]


Block = Annotated[
    TextBlock | FileRefBlock | ImageRefBlock | ToolCallBlock | ToolResultBlock | SummaryBlock | ReasoningBlock,
    Field(discriminator="type"),
]
Blocks = Annotated[tuple[Block, ...], type_of_sequence]


class ToolCallRef(Frozen):
    """The call an assistant message makes (spec ONT-3)."""

    id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    status: CallStatus = "pending"


class ToolResultRef(Frozen):
    """The result a tool message carries (spec ONT-3)."""

    id: str
    output_ref: str | None = None
    output_preview: str = ""
    truncated: bool = False


class Provenance(Frozen):
    """Where a message comes from."""

    source: Source
    source_refs: Names = ()


class ContextPolicy(Frozen):
    """Whether and how a message may enter a context."""

    include_in_context: bool = True
    priority: int = 50
    max_tokens: int | None = None


class Message(Frozen):
    """One entry of the transcript."""

    message_id: str
    session_id: str
    run_id: str
    role: Role
    content: Blocks
    tool_call: ToolCallRef | None = None
    tool_result: ToolResultRef | None = None
    provenance: Provenance
    context_policy: ContextPolicy = Field(default_factory=lambda: ContextPolicy())


class CompiledMessage(Frozen):
    """One message of a compiled context: what an adapter turns into a provider's form."""

    role: Role
    content: Blocks
    label: str | None = Field(default=None, description="What it is, for data that is not the user's words.")


class Usage(Frozen):
    """Tokens of one model call; cached is part of input, reasoning of output; None: the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


StopReason = Literal["end_turn", "tool_calls", "output_limit", "refusal", "other"]


class ModelResponse(Frozen):
    """A provider's answer in canonical blocks, as stored by content and never paid for twice (spec LOOP-5)."""

    schema_version: Literal[1] = 1
    model: str
    content: Blocks
    stop_reason: StopReason
    usage: Usage = Field(default_factory=lambda: Usage())
    provider_response_id: str | None = None

    @property
    def text(self) -> str:
        """All text blocks joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def calls(self) -> tuple[ToolCallBlock, ...]:
        """The calls, in request order."""
        return tuple(block for block in self.content if isinstance(block, ToolCallBlock))
