"""The classifier knows kinds of errors by what they say, not by a list of wordings; the variants here are our own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.providers.failures import classify, one_line, retry_after
from salience.providers.overflow import read_sizes
from salience.providers.report import Report, report_of_exception, report_of_object

OVERFLOW = [
    ("the maximum context length is 128000 tokens, but your messages resulted in 204308 tokens", 204308, 128000),
    ("prompt is too long: 219898 tokens > 200000 maximum", 219898, 200000),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 `inputs` tokens and 60 `max_new_tokens`",
        3474,
        2048,
    ),
    (
        "requested 122946 (112946 in the messages, 10000 in the completion); maximum context length is 16384",
        112946,
        16384,
    ),
    ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 15028, 7424),
    ("Your request exceeded model token limit: 262144 (requested: 269030)", 269030, 262144),
    ("Range of input length should be [1, 983616]", None, 983616),
    ("invalid params, context window exceeds limit (2013)", None, None),
    ("Your conversation of 210,432 tokens is longer than the 200,000-token context of this model", 210432, 200000),
    ("Sorry, the text you sent does not fit into the context window", None, None),
    ("The input is too large for this model. Limit: 32768 tokens, got 40112 tokens", 40112, 32768),
    ("This request would use 131500 tokens, but the model's window holds only 131072", 131500, 131072),
    ("prompt has 5000 tokens; at most 4096 are allowed", 5000, 4096),
    ("Context size has been exceeded.", None, None),
    ("sequence length 70001 is larger than max_position_embeddings 65536", 70001, 65536),
    ("too many tokens in prompt", None, None),
    ("Max context: 16000 tokens. Yours: 17500.", 17500, 16000),
    ("输入长度超过模型最大上下文长度", None, None),
    ("Input exceeds the model's maximum of 1_048_576 tokens", None, 1048576),
    ("The messages are too long, please shorten your conversation", None, None),
    ("Model 'x' supports up to 8192 tokens; 10500 were submitted", 10500, 8192),
    ("context overflow: need 9000, have 8192", 9000, 8192),
    ("conversation too long", None, None),
]
LESS_OUTPUT = [
    ("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000", 178959, 200000),
    ("'max_tokens' is too large: 64000; maximum context length is 64001 (64000 > 64001 - 24235)", 24235, 64001),
    (
        "context length is 8192, requested 8213 (6683 in the messages, 730 in the functions, 800 in the completion)",
        7413,
        8192,
    ),
    ("8000 tokens in the prompt and 9000 tokens of output exceed the maximum of 16384", 8000, 16384),
    ("Input has 1000 tokens, max_tokens=7500: sum exceeds context length 8192", 1000, 8192),
    ("max_tokens must be at most 8192", None, None),
    ("Requested 20000 output tokens, the maximum for this model is 16000", None, None),
    ("Input validation error: `max_new_tokens` must be <= 192", None, None),
]
OTHERS: list[tuple[int | None, str, str]] = [
    (429, "Limit 30000 tokens per min, requested 342389. The input or output tokens must be reduced", "rate_limit"),
    (413, "Request too large on tokens per minute (TPM): Limit 6000, please reduce your message size", "rate_limit"),
    (403, "Daily token limit exceeded for your plan", "rate_limit"),
    (None, "Provider returned error: model is temporarily rate-limited upstream", "rate_limit"),
    (429, "The engine is currently overloaded", "overload"),
    (529, "Overloaded", "overload"),
    (503, "Service temporarily unavailable", "overload"),
    (413, "Request Entity Too Large", "context_overflow"),
    (401, "Invalid authentication token", "auth"),
    (403, "You have no access to this project", "auth"),
    (400, "Incorrect API key provided: sk-abcd*****1234", "auth"),
    (402, "Payment required", "auth"),
    (429, "You have insufficient balance, recharge first", "auth"),
    (400, "messages.3.image: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes", "bad_request"),
    (400, "image dimensions exceed the maximum of 2000 pixels for requests with many images", "bad_request"),
    (400, "messages: array is too long", "bad_request"),
    (400, "The cached content is of 1171 tokens. The minimum token count to start caching is 4096.", "bad_request"),
    (400, "messages.134: `tool_use` ids were found without `tool_result` blocks after them", "bad_request"),
    (400, "tools: maximum of 128 items exceeded", "bad_request"),
    (400, "Invalid 'messages[3].tool_calls[0].id': string too long, maximum length 40, got 51", "bad_request"),
    (400, "thinking.budget_tokens must be at least 1024", "bad_request"),
    (400, "Unsupported parameter: 'max_tokens' is not supported with this model", "bad_request"),
    (400, "unexpected token at position 12 in request body", "bad_request"),
    (400, "text content blocks must be non-empty", "bad_request"),
    (404, "The model `gpt-99` does not exist or you do not have access to it.", "bad_request"),
    (400, "The request was blocked by our content filter", "content_refusal"),
    (400, "tool_use_failed: Failed to call a function. See failed_generation", "malformed_tool_arguments"),
    (400, "Token limit reached", "output_limit"),
    (408, "slow", "timeout"),
    (504, "gateway", "timeout"),
    (500, "Missing credentials. Please pass one of `api_key` or a token", "auth"),
    (
        500,
        "Cannot make the request: ssl:<ssl.SSLContext object at 0x7f8a1b2c>, limit of retries exceeded",
        "unavailable",
    ),
    (500, "boom", "unavailable"),
    (502, "upstream connect error", "unavailable"),
    (None, "", "unavailable"),
]


@pytest.mark.parametrize(("text", "prompt", "limit"), OVERFLOW)
@pytest.mark.parametrize("status", [400, 422, 500, None])
def test_overflow_whatever_the_wording(text: str, prompt: int | None, limit: int | None, status: int | None) -> None:
    failure = classify(Report(status=status, message=text))
    assert (failure.kind, failure.prompt_tokens, failure.limit_tokens) == ("context_overflow", prompt, limit)


@pytest.mark.parametrize(("text", "prompt", "limit"), LESS_OUTPUT)
def test_a_prompt_that_fits_needs_less_output(text: str, prompt: int | None, limit: int | None) -> None:
    failure = classify(Report(status=400, message=text))
    assert (failure.kind, failure.prompt_tokens, failure.limit_tokens) == ("lower_output_needed", prompt, limit)


@pytest.mark.parametrize(("status", "text", "kind"), OTHERS)
def test_everything_else(status: int | None, text: str, kind: str) -> None:
    failure = classify(Report(status=status, message=text))
    assert failure.kind == kind
    assert failure.prompt_tokens is None
    assert failure.limit_tokens is None


@given(
    st.integers(2_000, 2_000_000),
    st.integers(1, 500_000),
    st.sampled_from(
        [
            "prompt of {p} tokens exceeds the limit of {l} tokens",
            "{p} tokens are more than the {l} token context",
            "context window of {l} tokens exceeded: {p} tokens",
            "maximum context length is {l} tokens, but got {p} tokens in the input",
            "token count {p} > {l} maximum",
        ]
    ),
)
@settings(max_examples=100, deadline=None)
def test_of_two_sizes_the_larger_is_the_prompt(limit: int, over: int, form: str) -> None:
    reading = read_sizes(form.format(p=limit + over, l=limit))
    assert reading.kind == "context_overflow"
    if reading.limit_tokens is not None and reading.prompt_tokens is not None:
        assert (reading.prompt_tokens, reading.limit_tokens) == (limit + over, limit)
    # A learned limit below the true one would shrink the window for good.
    assert reading.limit_tokens in (None, limit)


@given(st.text(max_size=300), st.integers(100, 600) | st.none())
@settings(max_examples=200, deadline=None)
def test_any_text_gives_one_line(text: str, status: int | None) -> None:
    failure = classify(Report(status=status, message=text))
    assert failure.message
    assert len(failure.message.encode()) <= 500
    assert len(failure.message.splitlines()) == 1


class ConnectError(Exception):
    pass


class RemoteProtocolError(Exception):
    pass


class APITimeoutError(Exception):
    pass


class InternalServerError(Exception):
    status_code = 500


@pytest.mark.parametrize(
    ("cause", "started", "kind"),
    [
        (ConnectError("[Errno 111]"), False, "unavailable"),
        (RemoteProtocolError("peer closed connection"), True, "truncated_stream"),
        (RemoteProtocolError("peer closed connection"), False, "unavailable"),
        (APITimeoutError("slow"), False, "timeout"),
        (
            ConnectError("Cannot connect to host h:9 ssl:<ssl.SSLContext object at 0x7e>, too many tokens"),
            False,
            "unavailable",
        ),
        (ValueError("odd"), False, "unavailable"),
    ],
)
def test_causes_know_better_than_an_invented_status(cause: Exception, started: bool, kind: str) -> None:
    error = InternalServerError("litellm.InternalServerError: OpenAIException - Connection error.")
    error.__cause__ = cause
    failure = classify(report_of_exception(error, started=started))
    assert failure.kind == kind
    assert failure.message == "Connection error."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 400, "message": "Token limit reached"}, "output_limit"),
        ({"code": "context_length_exceeded", "message": "please adjust your input"}, "context_overflow"),
        ({"type": "overloaded_error", "message": "x"}, "overload"),
        ({"type": "authentication_error", "message": "x"}, "auth"),
        (
            {
                "code": 502,
                "message": "Provider returned error",
                "metadata": {"raw": '{"error":{"message":"rate limit exceeded"}}'},
            },
            "rate_limit",
        ),
        (
            {
                "error": {
                    "code": 400,
                    "n_prompt_tokens": 9000,
                    "n_ctx": 8192,
                    "message": "exceeds the available context size",
                }
            },
            "context_overflow",
        ),
        ("something", "unavailable"),
        ([{"message": "too many requests"}], "rate_limit"),
    ],
)
def test_error_objects(error: Any, kind: str) -> None:
    assert classify(report_of_object(error)).kind == kind


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({"retry-after": "7"}, "", 7),
        ({"retry-after-ms": "1500", "retry-after": "9"}, "", 1.5),
        ({"retry-after": "Tue, 01 Dec 2026 00:00:30 GMT"}, "", 30),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "999999"}, "", 3600),
        ({"x-ratelimit-reset-requests": "1m30s"}, "", 90),
        ({"x-ratelimit-reset-requests": "1796083230"}, "", None),
        ({}, "Please try again in 6m1.5s.", 361.5),
        ({}, "Please try again in 340ms", 0.34),
        ({}, "retry after 20 seconds", 20),
        ({}, 'retryDelay: "34s"', 34),
        ({}, "try again later", None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], message: str, seconds: float | None) -> None:
    assert retry_after(headers, message, now=datetime(2026, 12, 1, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-Ab3dEf6hIj9kLm2n",
        "Authorization: Bearer abcdef123456",
        'headers {"x-api-key": "s3cr3t-value"}',
        "GET https://x/y?key=AIzaSyD3adB33f&alt=sse",
        "token eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
    ],
)
def test_credentials_are_redacted(text: str) -> None:
    line = one_line(text)
    assert "[redacted]" in line
    for secret in ("Ab3dEf", "abcdef123456", "s3cr3t", "AIza", "eyJ"):
        assert secret not in line


def test_known_secrets_are_redacted_whatever_they_look_like() -> None:
    assert (
        one_line("the phrase hunter2-hunter2 was wrong", secrets=["hunter2", "hunter2-hunter2"])
        == "the phrase [redacted] was wrong"
    )
