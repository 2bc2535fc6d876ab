"""A report holds what is known of a failed call, whoever raised it and however deep the provider's words lay.

Errors come as exceptions of several libraries, as bodies, as objects inside a success, and as strings of JSON inside
the error of a router; a report is read by what they carry, never by their class, so that no library is imported here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a failed call, whoever raised it.

    Args:
        status: HTTP status, or the code inside an error object that came with a 200.
        message: the provider's own words.
        codes: machine-readable codes and types of the error object, lower case.
        names: class names of the exception and its causes, outermost first.
        headers: response headers, names in lower case.
        started: whether part of an answer had arrived.
    """

    status: int | None = None
    message: str = ""
    codes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    started: bool = False


def report_of_object(error: Any, *, started: bool = False) -> Report:
    """The report of an error object, as it comes inside a 200, in a stream, or as the body of an error."""
    codes: list[str] = []
    words: list[str] = []
    status: int | None = None
    for key, value in _leaves(error, 0):
        if key in ("code", "status", "status_code", "http_status", "error_code") and status is None:
            status = _status(value)
        if key in ("code", "type", "status", "finish_reason", "reason") and isinstance(value, str):
            codes.append(value.lower()[:100])
        if key in ("message", "detail", "details", "msg", "raw", "error", "", "n_prompt_tokens", "n_ctx", "retryDelay"):
            text = str(value)
            words.append(text if key in ("message", "detail", "msg", "error", "") else f"{key}: {text}")
    return Report(status=status, message=" ".join(dict.fromkeys(words))[:20_000], codes=tuple(codes), started=started)


def _leaves(value: Any, depth: int, key: str = "") -> Iterator[tuple[str, Any]]:
    if depth > 6:
        return
    if isinstance(value, str) and value.lstrip().startswith("{"):
        # A router wraps the error of its upstream as a string of JSON.
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        for name in sorted(mapping, key=lambda name: name != "message"):
            yield from _leaves(mapping[name], depth + 1, str(name))
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[Any]", value):
            yield from _leaves(item, depth + 1, key)
    elif value is not None and not isinstance(value, bool):
        yield key, value


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


def report_of_exception(error: BaseException, *, started: bool = False) -> Report:
    """The report of an exception of any provider library, read by what it carries instead of by its class."""
    chain = list(_chain(error))
    status = next((found for e in chain if (found := _status(getattr(e, "status_code", None))) is not None), None)
    names = tuple(type(e).__name__ for e in chain)
    headers: dict[str, str] = {}
    codes: list[str] = []
    extra: list[str] = []
    for e in chain:
        response = getattr(e, "response", None)
        for source in (
            getattr(e, "litellm_response_headers", None),
            getattr(response, "headers", None),
            getattr(e, "headers", None),
        ):
            if source is not None and hasattr(source, "items"):
                for name, value in source.items():
                    plain = str(name).lower().removeprefix("llm_provider-")
                    headers.setdefault(plain, str(value))
        for name in ("code", "type"):
            if isinstance(value := getattr(e, name, None), str):
                codes.append(value.lower()[:100])
        if isinstance(body := getattr(e, "body", None), Mapping | list):
            inner = report_of_object(body)
            codes.extend(inner.codes)
            extra.append(inner.message)
            # Only a body knows of the upstream behind a router's own status.
            status = inner.status if status in (None, 200, 500, 502) and inner.status else status
    message = next((text for text in extra if text), "") or str(getattr(chain[0], "message", "") or chain[0])
    inner = report_of_object(_embedded(message))
    if inner.message:
        message, codes, status = inner.message, [*codes, *inner.codes], status or inner.status
    return Report(status, message[:20_000], tuple(dict.fromkeys(codes)), names, headers, started)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < 12:
        e = waiting.pop(0)
        if not isinstance(e, BaseException) or id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        waiting += [getattr(e, "original_exception", None), e.__cause__, e.__context__]


def _embedded(message: str) -> Any:
    """The JSON object inside a library's message, or nothing."""
    start = message.find("{")
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(message[start:])[0]
    except (ValueError, RecursionError):
        return None
