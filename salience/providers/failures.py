"""Every provider error becomes one of the named kinds, whatever its wording (spec LOOP-5, CMP-3).

The workflow acts on the kind alone, so a wrong one costs: an overflow taken for a bad request ends the session, a rate
limit taken for an overflow compacts for nothing, and a prompt that fits but is compacted loops. Known codes decide
first, then sizes (`salience.providers.overflow`), then the wording, then the status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from salience.model.calls import ModelFailure
from salience.model.event import ModelFailureKind
from salience.model.text import mend, preview
from salience.providers.overflow import Reading, read_sizes
from salience.providers.report import Report

MESSAGE_BYTES = 500
MAX_RETRY_AFTER_S = 3600.0
"""A longer wait is no advice a session can follow; it is cut, and the limit shows again at the next call."""


_RATE = re.compile(
    r"rate.?limit|too many requests|(?:tokens?|requests?|input|quota|usage)[\w ]{0,24} (?:per|a|each) "
    r"(?:second|minute|hour|day|month)|\b[tr]p[mdh]\b|throttl|quota|resource.?exhausted|"
    r"concurren\w+ (?:limit|request)|"
    r"(?:hourly|daily|weekly|monthly|usage)(?: \w+)? limit"
)
_BILLING = re.compile(
    r"insufficient.?(?:quota|balance|credit|fund)|billing.?(?:hard|not)|payment required|credit balance"
)
_OVERLOAD = re.compile(
    r"overload|over capacity|at capacity|server (?:is )?busy|high demand|no (?:healthy|available) (?:up|serv)"
)
_AUTH = re.compile(
    r"(?:invalid|incorrect|missing|no|expired|wrong|bad|provide).{0,20}(?:api.?key|credential|"
    r"token provided|auth\w* token)|"
    r"api.?key.{0,30}(?:invalid|incorrect|missing|not (?:set|valid|found)|expired|must be set|required)|"
    r"unauthori[sz]ed|authentication|permission.?denied|access denied"
)
_NO_KEY = re.compile(
    r"(?:missing|unable to locate|no) credentials|"
    r"api_key[\w ]{0,20} must be set|no api.?key (?:was )?(?:provided|found)"
)
_REFUSED = re.compile(
    r"content.?(?:filter|policy|management)|moderation|responsible.?ai|usage polic|safety (?:system|"
    r"setting|filter|reason)|"
    r"prohibited.?content|guardrail|(?:prompt|input|request|content) (?:was |has been )?(?:blocked|"
    r"flagged)|data_inspection"
)
_MALFORMED_CALL = re.compile(
    r"malformed.?(?:function|tool)|tool_use_failed|failed_generation|fail\w* to (?:call|"
    r"parse)[\w ]{0,16} (?:function|tool)|"
    r"(?:invalid|unparsable|not valid)[\w ]{0,16}json[\w ]{0,20}(?:tool|function)[\w ]{0,6}call|"
    r"(?:tool|function) call[\w ]{0,20}(?:invalid json|could not be parsed|not valid)|invalid.?tool.?generation"
)
_OUTPUT_LIMIT = re.compile(
    r"(?<!context )(?<!input )(?<!prompt )\btoken limit (?:was |has been )?reached\W*(?:$|"
    r"[\"'}])|reached[\w ]{0,20} output (?:token )?limit"
)
_CUT = re.compile(
    r"incomplete (?:chunked read|read|message)|peer closed|connection (?:was )?(?:reset|closed|lost)|response ended|"
    r"server disconnected|premature|payload is not completed|unexpected eof|stream (?:ended|closed|"
    r"was cut)|transferencoding"
)
_TIMED_OUT = re.compile(r"timed? ?out|deadline exceeded")
_UNKNOWN_MODEL = re.compile(
    r"model.{0,80}(?:not (?:found|exist|supported|available)|does(?: not|n.t) exist)|(?:unknown|no such) model"
)
_CONNECT_NAMES = (
    "ConnectError",
    "ClientConnect",
    "ConnectionRefused",
    "gaierror",
    "ConnectionReset",
    "NewConnection",
    "ClientOSError",
)
_CUT_NAMES = (
    "RemoteProtocolError",
    "IncompleteRead",
    "ClientPayload",
    "ServerDisconnected",
    "ReadError",
    "ChunkedEncoding",
)
_TIMEOUT_NAMES = ("Timeout", "DeadlineExceeded")
_OVERFLOW_NAMES = ("ContextWindowExceeded", "ContextLengthExceeded")


def classify(report: Report, *, secrets: Iterable[str] = (), now: datetime | None = None) -> ModelFailure:
    """The failure a report amounts to.

    Args:
        report: what is known of the failed call.
        secrets: texts that must not appear in the message, such as the keys of this process.
        now: the time that a date in Retry-After is measured from; without it such a date is not used.

    Returns:
        The failure: its message is one line of at most 500 bytes without secrets, sizes stand beside an overflow.
    """
    said = " ".join((report.message, *report.codes)).lower()
    reading = read_sizes(report.message, report.codes)
    kind = _kind(report, said, reading)
    sized = kind in ("context_overflow", "lower_output_needed")
    waits = kind in ("rate_limit", "overload", "unavailable", "timeout")
    return ModelFailure(
        kind=kind,
        message=one_line(report.message, secrets=secrets) or _unsaid(kind, report),
        # A connection that was never made has no status; the one its exception carries is made up.
        status=None if _named(report, _CONNECT_NAMES) else report.status,
        retry_after_s=retry_after(report.headers, report.message, now=now) if waits else None,
        prompt_tokens=reading.prompt_tokens if sized else None,
        limit_tokens=reading.limit_tokens if sized else None,
    )


def _named(report: Report, marks: Iterable[str]) -> bool:
    return any(mark in name for mark in marks for name in report.names)


def _transport(report: Report) -> ModelFailureKind | None:
    """The kind, where a cause says that the connection failed; the status around it is often made up."""
    if _named(report, _CONNECT_NAMES) or _named(report, _CUT_NAMES):
        return "truncated_stream" if report.started else "unavailable"
    return "timeout" if _named(report, _TIMEOUT_NAMES) else None


def _kind(report: Report, said: str, reading: Reading) -> ModelFailureKind:
    status = report.status
    names = " ".join(report.names)

    # Where the request never arrived nobody has read it: words in a library's message ("SSLContext") say nothing of it.
    if (transport := _transport(report)) is not None:
        return transport
    if _NO_KEY.search(said):
        return "auth"
    if _BILLING.search(said) and not re.search(r"per (?:minute|day)|free.?tier", said):
        # No wait helps and nothing is wrong with the request: the account has to be seen to.
        return "auth"
    if status == 429 or "RateLimit" in names or (_RATE.search(said) and status != 401):
        return "overload" if _OVERLOAD.search(said) else "rate_limit"
    if status in (401, 402):
        return "auth"
    if _OUTPUT_LIMIT.search(report.message.lower()):
        return "output_limit"
    if reading.kind is not None:
        return reading.kind
    if any(name in names for name in _OVERFLOW_NAMES):
        return "context_overflow"
    if "ContentPolicy" in names or (_REFUSED.search(said) and status in (None, 200, 400, 403, 422, 451)):
        return "content_refusal"
    if _MALFORMED_CALL.search(said):
        return "malformed_tool_arguments"
    return _kind_of_status(report, said, names)


def _kind_of_status(report: Report, said: str, names: str) -> ModelFailureKind:
    status = report.status
    if _CUT.search(said) and status in (None, 200, 500, 502, 503):
        return "truncated_stream" if report.started else "unavailable"
    if status in (408, 504):
        return "timeout"
    if status in (503, 529) or (_OVERLOAD.search(said) and (status is None or status == 200 or status >= 500)):
        return "overload"
    if status == 403 or any(name in names for name in ("Authentication", "PermissionDenied")):
        return "auth"
    if status == 413:
        # Too large in bytes, by a proxy that knows no tokens: a smaller view is what helps.
        return "context_overflow"
    if status is not None and 400 <= status < 500:
        return "auth" if status == 400 and _AUTH.search(said) else "bad_request"
    if status is not None and status >= 500:
        return "timeout" if _TIMED_OUT.search(said) and status == 500 else "unavailable"
    return _kind_of_words(said, names)


def _kind_of_words(said: str, names: str) -> ModelFailureKind:
    """For an error without a status: an error object in a stream, or an exception of a library."""
    if _AUTH.search(said):
        return "auth"
    if _TIMED_OUT.search(said):
        return "timeout"
    if _UNKNOWN_MODEL.search(said) or re.search(r"invalid.?request|bad.?request|not.?found|unsupported", said):
        return "bad_request"
    if any(
        name in names for name in ("BadRequest", "NotFound", "Unsupported", "InvalidRequest", "UnprocessableEntity")
    ):
        return "bad_request"
    return "unavailable"


def _unsaid(kind: ModelFailureKind, report: Report) -> str:
    status = f" (status {report.status})" if report.status else ""
    return f"the provider gave no reason: {kind.replace('_', ' ')}{status}"


_SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"),
    re.compile(
        r"(?i)\b((?:x-)?(?:api|access|secret|auth)[-_ ]?(?:key|"
        r"token)(?: provided)?[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}]{4,}"
    ),
    re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?)(?!bearer|basic)[^\s\"',;}]{4,}"),
    re.compile(r"(?i)([?&](?:key|token|api_key|access_token)=)[^\s&\"']+"),
    re.compile(
        r"()\b(?:sk|pk|rk|gsk|xai|key|hf|ghp|gho|glpat|nvapi|pplx|fw|r8|csk|AKIA|"
        r"AIza)[-_]?(?=[\w*-]*[\d*])[\w*-]{12,}"
    ),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]+)?"),
)


def one_line(text: str, *, secrets: Iterable[str] = ()) -> str:
    """A text as one line of at most 500 bytes, without anything that looks like a credential."""
    line = re.sub(r"\s*(?:ssl:)?<[^<>]* object at 0x[0-9a-f]+>|\.? Handle with `litellm\.\w+`\.?", "", mend(text))
    # The longest first: a key may begin with another.
    for secret in sorted((s for s in secrets if len(s) >= 6), key=len, reverse=True):
        line = line.replace(secret, "[redacted]")
    for pattern in _SECRETS:
        line = pattern.sub(lambda found: f"{found.group(1)} [redacted]".strip(), line)
    line = re.sub(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)\s*(?:[:-]|$)\s*)+", "", line.strip())
    return preview(" ".join("".join(c if c.isprintable() else " " for c in line).split()), MESSAGE_BYTES)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?(?![a-z])", re.I)
_ADVICE = re.compile(
    r"(?:try again|retry|wait)[\w ]{0,20}?(?:in|after|for)?[:\s]+((?:\d+(?:\.\d+)?\s?(?:ms|s|m|h)\s?)+)(?![a-z])|"
    r"(?:try again|retry|wait)[\w ]{0,20}?(\d+(?:\.\d+)?) ?(?:seconds|secs?)\b|"
    r"retry_?delay[\"']?\s*[:=]\s*[\"']?(\d+(?:\.\d+)?s)",
    re.I,
)


def retry_after(headers: Mapping[str, str], message: str = "", *, now: datetime | None = None) -> float | None:
    """Seconds the provider asks to wait, from its headers or else its words; None when it does not say."""
    if (ms := _number(headers.get("retry-after-ms"))) is not None:
        return _bounded(ms / 1000)
    if said := headers.get("retry-after", "").strip():
        if (seconds := _number(said)) is not None:
            return _bounded(seconds)
        if now is not None:
            try:
                return _bounded((parsedate_to_datetime(said) - now).total_seconds())
            except (ValueError, TypeError):
                pass
    if found := _ADVICE.search(message):
        return _bounded(_span(next(group for group in found.groups() if group)))
    spans = [
        _span(headers[name])
        for name in ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
        # A bare number may be a point in time; only a span says how long.
        if re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", headers.get(name, ""))
    ]
    return _bounded(max(spans)) if spans else None


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\s*\d{1,9}(?:\.\d{1,9})?\s*", text) else None


def _span(text: str) -> float:
    return sum(float(value) * _UNITS[(unit or "s").lower()] for value, unit in _SPAN.findall(text))


def _bounded(seconds: float) -> float:
    return min(max(round(seconds, 3), 0.0), MAX_RETRY_AFTER_S)
