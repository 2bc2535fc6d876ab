"""A script answers like a model, from a file: the turn depends on the call's index alone, never on memory (design §8).

    turns:
      - text: I will look first.
        tool_calls: [{name: list_files, args: {path: .}}]
        usage: {input_tokens: 900, output_tokens: 12}
      - error: {kind: rate_limit, retry_after_s: 2}
      - text: Done.
        delay_s: 0.5
    on_end: error        # or repeat_last, or cycle

It is a provider for demos, tests and benchmarks, and is never presented as a language model.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from salience.errors import UsageError
from salience.model.calls import ModelFailure
from salience.model.canonical import canonical_json
from salience.model.event import ModelFailureKind
from salience.model.frozen import Frozen, type_of_sequence
from salience.model.message import Block, ModelResponse, TextBlock, ToolCallBlock, Usage
from salience.model.text import mend

OnEnd = Literal["error", "repeat_last", "cycle"]


class ScriptedCall(Frozen):
    """A call a turn makes."""

    name: str = Field(min_length=1)
    args: dict[str, Any] = Field(default_factory=dict[str, Any])

    @field_validator("args")
    @classmethod
    def _json(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            # YAML knows dates, NaN and keys that are no strings; history does not.
            if json.loads(canonical_json(value)) != value:
                raise ValueError("args is no JSON object")
        except (TypeError, ValueError) as error:
            raise ValueError(f"args is no JSON object: {error}") from None
        return value


class ScriptedError(Frozen):
    """A failure a turn gives instead of an answer."""

    kind: ModelFailureKind
    message: str = ""
    retry_after_s: float | None = Field(None, ge=0)
    prompt_tokens: int | None = Field(None, ge=0)
    limit_tokens: int | None = Field(None, ge=0)


class ScriptedTurn(Frozen):
    """What one model call gives: text and calls, or an error, after a delay."""

    text: str = ""
    tool_calls: Annotated[tuple[ScriptedCall, ...], type_of_sequence] = ()
    error: ScriptedError | None = None
    delay_s: float = Field(0, ge=0, le=3600)
    usage: Usage | None = None

    @field_validator("error", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _either(self) -> ScriptedTurn:
        if self.error is not None and (self.text or self.tool_calls):
            raise ValueError("an error stands alone, without text or tool_calls")
        return self


class Script(Frozen):
    """All turns, and what comes after the last."""

    turns: Annotated[tuple[ScriptedTurn, ...], type_of_sequence] = Field(min_length=1)
    on_end: OnEnd = "error"


def parse(text: str, name: str) -> Script:
    """A script from the text of its file.

    Args:
        text: YAML or JSON.
        name: the file, for messages.

    Raises:
        UsageError: the text is no script; one line that names the file, the turn (from 1) and the fault.
    """
    try:
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, _LOADER)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"script {name} is neither YAML nor JSON: {_line(error)}") from None
    if not isinstance(data, dict):
        raise UsageError(f"script {name} has no `turns:` list")
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = list(first["loc"])
        turn = (
            f", turn {place[1] + 1}" if place[:1] == ["turns"] and len(place) > 1 and isinstance(place[1], int) else ""
        )
        inside = ".".join(str(part) for part in (place[2:] if turn else place))
        raise UsageError(f"script {name}{turn}: {inside + ': ' if inside else ''}{_line(first['msg'])}") from None


# The C parser reads a script of 10,000 turns in a second, the other in ten.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def choose(script: Script, call_index: int, name: str) -> ScriptedTurn:
    """The turn of a call.

    Args:
        script: the parsed script.
        call_index: finished model requests in the session's log, failures included; 0 for the first call.
        name: the file, for messages.

    Raises:
        UsageError: the script has no turn left.
    """
    count = len(script.turns)
    if call_index < count:
        return script.turns[call_index]
    if script.on_end == "cycle":
        return script.turns[call_index % count]
    if script.on_end == "repeat_last":
        return script.turns[-1]
    raise UsageError(
        f"script {name} has {count} turn{'s' if count != 1 else ''}, and this is model call {call_index + 1}: "
        "add turns, or set on_end to repeat_last or cycle"
    )


def outcome(scripted: ScriptedTurn, model: str, turn: int) -> ModelResponse | ModelFailure:
    """What a scripted turn amounts to, in the same terms as a provider's answer.

    Args:
        scripted: the chosen turn.
        model: the model string of the session, `script:FILE`.
        turn: number of the turn, part of the canonical call ids.
    """
    if (error := scripted.error) is not None:
        return ModelFailure(
            kind=error.kind,
            message=_line(error.message) or f"the script says {error.kind}",
            retry_after_s=error.retry_after_s,
            prompt_tokens=error.prompt_tokens,
            limit_tokens=error.limit_tokens,
        )
    if not scripted.text.strip() and not scripted.tool_calls:
        return ModelFailure(kind="empty_response", message="the model answered with neither text nor a call")
    content: list[Block] = [TextBlock(text=mend(scripted.text))] if scripted.text.strip() else []
    for index, call in enumerate(scripted.tool_calls):
        content.append(ToolCallBlock(tool_call_id=f"call_{turn}_{index}", name=call.name, args=call.args))
    return ModelResponse(
        model=model,
        content=tuple(content),
        stop_reason="tool_calls" if scripted.tool_calls else "end_turn",
        usage=scripted.usage or Usage(),
    )


def _line(text: object) -> str:
    return mend(" ".join(str(text).split()).removeprefix("Value error, "))[:300]
