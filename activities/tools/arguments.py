"""Arguments are what the schema says or the tool does not run; the refusal names the field and what is expected."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from activities.tools.result import Arguments, Refused
from salience.model.text import mend, preview
from salience.model.tool import ToolSpec

_SHOWN_PROBLEMS = 3
_SHOWN_BYTES = 300


def schema(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema of an arguments object that takes these properties and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def checked(spec: ToolSpec, args: Arguments, raw: str | None) -> Arguments:
    """The arguments as the tool takes them: as the schema says, and as text that can be stored.

    Args:
        spec: the tool's contract.
        args: the parsed object.
        raw: the text the model sent, when it was no JSON object.

    Raises:
        Refused: they do not fit; every field that is wrong is named.
    """
    if raw is not None:
        raise Refused(
            f"the arguments of {spec.name} are no JSON object: {_parse_error(raw)}.\n{usage(spec)}",
            kind="invalid_arguments",
        )
    # The stubs of jsonschema leave one overload of iter_errors without types.
    problems: list[ValidationError] = sorted(
        _validator(spec.name, json.dumps(spec.parameters)).iter_errors(args),  # pyright: ignore[reportUnknownMemberType]
        key=lambda problem: list(map(str, problem.path)),
    )
    if problems:
        lines = [f"- {_problem(problem)}" for problem in problems[:_SHOWN_PROBLEMS]]
        raise Refused(
            "\n".join([f"the arguments of {spec.name} do not fit:", *lines, usage(spec)]), kind="invalid_arguments"
        )
    return _clean(spec, args)


def usage(spec: ToolSpec) -> str:
    """The call as one line: names, types, and which may be left out."""
    required = spec.parameters.get("required", [])
    fields = [
        f"{name}{'' if name in required else '?'}: {_type(rule)}"
        for name, rule in spec.parameters["properties"].items()
    ]
    return f"Expected: {spec.name}({', '.join(fields)})"


@lru_cache(maxsize=64)
def _validator(name: str, parameters: str) -> Draft202012Validator:
    del name
    return Draft202012Validator(json.loads(parameters))


def _problem(problem: ValidationError) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem.absolute_path).lstrip(".")
    said = preview(mend(problem.message), _SHOWN_BYTES)
    return f"{place}: {said}" if place else said


def _parse_error(raw: str) -> str:
    try:
        value = json.loads(raw)
    except ValueError as error:
        return f"{error} in {preview(mend(raw), _SHOWN_BYTES)!r}"
    return f"it is a JSON {type(value).__name__}"


def _type(rule: dict[str, Any]) -> str:
    if "enum" in rule:
        return "|".join(map(str, rule["enum"]))
    return f"array of {_type(rule['items'])}" if rule.get("type") == "array" else str(rule.get("type", "any"))


def _clean(spec: ToolSpec, value: Any, place: str = "") -> Any:
    """The value with lone surrogates mended; NUL is refused: replacing it would change what is written or run."""
    if isinstance(value, str):
        if "\x00" in value:
            raise Refused(f"{place} of {spec.name} contains NUL, which no argument can hold", kind="invalid_arguments")
        return mend(value)
    if isinstance(value, list):
        items = cast(list[Any], value)
        return [_clean(spec, item, f"{place}[{index}]") for index, item in enumerate(items)]
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {key: _clean(spec, item, f"{place}.{key}".lstrip(".")) for key, item in fields.items()}
    return value
