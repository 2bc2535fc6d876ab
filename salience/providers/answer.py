"""A provider's answer, whole or in chunks, becomes canonical blocks or a named failure; no shape of it raises.

The calls decide what an answer is, not its finish reason. Call ids are ours, `call_{turn}_{index}`: what a provider
sends may be empty, constant or used before. Reasoning is opaque and never text (spec ONT-3, ONT-11, LOOP-5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from salience.model.calls import ModelFailure
from salience.model.canonical import canonical_json
from salience.model.event import ModelFailureKind
from salience.model.message import Block, ModelResponse, ReasoningBlock, StopReason, TextBlock, ToolCallBlock
from salience.model.session import ModelSettings
from salience.model.text import mend, preview
from salience.providers.failures import classify
from salience.providers.report import report_of_object
from salience.providers.thought import split_thinking
from salience.providers.usage import read_usage

MAX_DEPTH = 64
"""Arguments nested deeper than this are refused as malformed: serialisers give up not far below."""
MAX_NAME_BYTES = 128


@dataclass(slots=True)
class _Fragments:
    """One call as it arrives."""

    index: int | None
    provider_id: str = ""
    name: str = ""
    arguments: str = ""
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def whole(self) -> bool:
        return bool(self.arguments.strip()) and parse_arguments(self.arguments)[1] is None


@dataclass(slots=True)
class Draft:
    """An answer as it arrives; `add` takes chunks or one whole completion, `outcome` reads what came."""

    text: str = ""
    refusal: str = ""
    reasoning: str = ""
    opaque: dict[str, Any] = field(default_factory=dict[str, Any])
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    response_id: str = ""
    error: Any = None
    started: bool = False
    calls: list[_Fragments] = field(default_factory=list[_Fragments])

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take in one chunk (`delta`) or a whole completion (`message`), as plain data."""
        if chunk.get("error"):
            self.error = chunk["error"]
            return
        if isinstance(identity := chunk.get("id"), str):
            self.response_id = self.response_id or identity
        self.usage = _object(chunk.get("usage")) or self.usage
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        choice = _object(cast("list[Any]", choices)[0])
        if choice.get("error"):
            self.error = choice["error"]
        self._finish(choice)
        message = _object(choice.get("message"))
        self._part(message or _object(choice.get("delta")), whole=bool(message))

    @property
    def calls_whole(self) -> bool:
        """Whether there are calls and all of them have complete arguments."""
        return bool(self.calls) and all(call.whole for call in self.calls)

    def _finish(self, choice: Mapping[str, Any]) -> None:
        native = _object(choice.get("provider_specific_fields")).get("native_finish_reason")
        # The adapter's own word says `stop` for much that is no stop; the provider's word says what happened.
        if isinstance(reason := native or choice.get("finish_reason"), str) and reason:
            self.finish = reason.lower()

    def _part(self, part: Mapping[str, Any], *, whole: bool) -> None:
        text, reasoning = _texts(part.get("content"))
        self.text += text
        said = part.get("reasoning_content") or part.get("reasoning")
        self.reasoning += reasoning + (said if isinstance(said, str) else "")
        if isinstance(refusal := part.get("refusal"), str):
            self.refusal += refusal
        for key in ("thinking_blocks", "reasoning_items"):
            if isinstance(blocks := part.get(key), list) and blocks:
                self._opaque_blocks(key, cast("list[Any]", blocks))
        if fields := {k: v for k, v in _object(part.get("provider_specific_fields")).items() if v is not None}:
            self.opaque.setdefault("fields", {}).update(fields)
        if isinstance(calls := part.get("tool_calls"), list):
            for position, call in enumerate(cast("list[Any]", calls)):
                self._fragment(_object(call), position if whole else None)
        elif function := _object(part.get("function_call")):
            self._fragment({"index": 0, "function": function}, 0)
        self.started = self.started or bool(self.text or self.reasoning or self.calls or self.refusal)

    def _opaque_blocks(self, key: str, blocks: list[Any]) -> None:
        """Reasoning blocks arrive whole, or as a run of texts that a signature closes."""
        kept: list[dict[str, Any]] = self.opaque.setdefault(key, [])
        for item in blocks:
            block = _object(item)
            last: dict[str, Any] = kept[-1] if kept else {}
            if block.get("type") == "thinking" == last.get("type") and not last.get("signature"):
                last["thinking"] = str(last.get("thinking") or "") + str(block.get("thinking") or "")
                last["signature"] = block.get("signature")
            elif block:
                kept.append(dict(block))

    def _fragment(self, call: Mapping[str, Any], position: int | None) -> None:
        if not call:
            return
        function = _object(call.get("function"))
        identity = call["id"] if isinstance(call.get("id"), str) else ""
        if call.get("type") not in (None, "", "function") or identity.startswith("srvtoolu_"):
            # A call the provider runs itself is recorded, never ours to run.
            self.opaque.setdefault("provider_calls", []).append(dict(call))
            return
        name = function["name"] if isinstance(function.get("name"), str) else ""
        arguments = _argument_text(function.get("arguments"))
        index = call["index"] if position is None and isinstance(call.get("index"), int) else position
        known = self._known(index, identity, name, arguments)
        if known is None:
            known = _Fragments(index, identity)
            self.calls.append(known)
        known.name = known.name or name
        known.provider_id = known.provider_id or identity
        known.arguments += arguments
        known.fields.update(_object(call.get("provider_specific_fields")))

    def _known(self, index: int | None, identity: str, name: str, arguments: str) -> _Fragments | None:
        """The call a fragment continues; None for a new one."""
        if index is None:
            same = [call for call in self.calls if identity and call.provider_id == identity]
            last = same[-1:] or (self.calls[-1:] if not identity and not name else [])
        else:
            last = [call for call in self.calls if call.index == index][-1:]
        if not last:
            return None
        call = last[0]
        # Servers that number every call 0 show it by a second beginning: a name with another id, or after a whole call.
        other = identity and call.provider_id and identity != call.provider_id
        begins = name and call.name and (other or (arguments and call.whole))
        return None if begins else call

    def outcome(self, settings: ModelSettings, turn: int) -> ModelResponse | ModelFailure:
        """The answer in canonical form, or why it is none.

        Args:
            settings: names provider and model, to which alone reasoning is ever returned.
            turn: number of the turn, part of the canonical call ids.
        """
        if self.error is not None:
            return classify(report_of_object(self.error, started=self.started))
        cut_short = self.finish in _LENGTH
        undecided = not self.calls or (cut_short and not self.calls_whole)
        if undecided and (failure := self._failure(cut_short)) is not None:
            return failure
        text, think = split_thinking(self.text)
        calls = tuple(_call(call, f"call_{turn}_{index}") for index, call in enumerate(self.calls))
        if not calls and not text.strip():
            if cut_short:
                return _failure("output_limit", "the output limit was reached before anything was said")
            return _failure("empty_response", "the model answered with neither text nor a call")
        blocks: list[Block] = []
        if data := self._reasoning(think, [call.tool_call_id for call in calls]):
            blocks.append(ReasoningBlock(provider=settings.provider, model=settings.model, data=data))
        if text.strip():
            blocks.append(TextBlock(text=mend(text)))
        return ModelResponse(
            model=settings.model,
            content=(*blocks, *calls),
            stop_reason="tool_calls" if calls else _STOP.get(self.finish, "other"),
            usage=read_usage(self.usage),
            provider_response_id=preview(mend(self.response_id), 200) or None,
        )

    def _failure(self, cut_short: bool) -> ModelFailure | None:
        if self.finish == "model_context_window_exceeded":
            return _failure("context_overflow", "the context window was full before the answer was finished")
        if "malformed" in self.finish:
            return _failure("malformed_tool_arguments", "the model wrote a tool call that the provider could not read")
        if self.finish in _REFUSALS or self.refusal:
            said = f": {self.refusal}" if self.refusal else f" ({self.finish})"
            return _failure("content_refusal", f"the provider or the model refused{said}")
        if self.finish in ("error", "network_error", "model_error"):
            return _failure(
                "truncated_stream" if self.started else "unavailable", "the provider failed while answering"
            )
        if cut_short and self.calls:
            return _failure("output_limit", "the output limit was reached inside a tool call")
        return None

    def _reasoning(self, think: str, call_ids: list[str]) -> dict[str, Any]:
        data = dict(self.opaque)
        if self.reasoning:
            data["reasoning_content"] = self.reasoning
        if think:
            data["think"] = think
        fields = {call_id: call.fields for call_id, call in zip(call_ids, self.calls, strict=True) if call.fields}
        if fields:
            data["call_fields"] = fields
        data = {key: value for key, value in data.items() if value}
        try:
            return cast("dict[str, Any]", _mended(data, 0))
        except ValueError:
            # What cannot be stored cannot be returned either; the answer itself does not depend on it.
            return {}


_LENGTH = ("length", "max_tokens", "max_output_tokens", "model_length")
_REFUSALS = (
    "content_filter", "content_filtered", "refusal", "safety", "sensitive", "recitation", "blocklist", "spii",
    "prohibited_content", "image_safety", "guardrail_intervened", "error_toxic",
)  # fmt: skip
_STOP: dict[str, StopReason] = {
    "": "end_turn",
    "stop": "end_turn",
    "end_turn": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "stop_sequence": "end_turn",
    "complete": "end_turn",
    "completed": "end_turn",
    **dict.fromkeys(_LENGTH, "output_limit"),
}


def _failure(kind: ModelFailureKind, message: str) -> ModelFailure:
    return ModelFailure(kind=kind, message=preview(" ".join(mend(message).split()), 500))


def _object(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _texts(content: Any) -> tuple[str, str]:
    """Text and reasoning of a `content`, which is a string, nothing, or a list of parts."""
    if isinstance(content, str):
        return content, ""
    text = reasoning = ""
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        if isinstance(part, str):
            text += part
            continue
        piece = _object(part)
        if piece.get("type") in ("thinking", "reasoning", "reasoning_text", "redacted_thinking"):
            reasoning += "".join(_texts(piece.get("thinking") or piece.get("text") or piece.get("reasoning")))
        elif isinstance(said := piece.get("text"), str):
            text += said
    return text, reasoning


def _argument_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        return str(arguments)


def _call(call: _Fragments, call_id: str) -> ToolCallBlock:
    args, raw = parse_arguments(call.arguments)
    return ToolCallBlock(tool_call_id=call_id, name=preview(mend(call.name), MAX_NAME_BYTES), args=args, raw_args=raw)


def parse_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Arguments as an object, and the text itself when it is none; no text at all means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if value is None:
            return {}, None
        if isinstance(value, dict):
            mended = cast("dict[str, Any]", _mended(value, 0))
            canonical_json(mended)
            return mended, None
    except (ValueError, RecursionError):
        pass
    return {}, mend(text)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is no finite number")
    return value


def _mended(value: Any, depth: int) -> Any:
    """JSON data with every text mended.

    Raises:
        ValueError: it is nested too deeply, or is no JSON.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {mend(str(key)): _mended(item, depth + 1) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_mended(item, depth + 1) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{type(value).__name__} is not JSON")
