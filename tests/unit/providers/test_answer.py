"""Every shape a provider answers with has one canonical outcome, and none raises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.model.calls import ModelFailure
from salience.model.canonical import canonical_json
from salience.model.message import ModelResponse, ReasoningBlock
from salience.model.session import ModelSettings
from salience.providers.answer import Draft, parse_arguments
from salience.providers.thought import split_thinking
from salience.providers.usage import merged, read_usage

SETTINGS = ModelSettings(model="openai/gpt-x")


def outcome(*deltas: dict[str, Any], finish: str | None = "stop", usage: Any = None, key: str = "delta") -> Any:
    draft = Draft()
    for delta in deltas:
        draft.add({"choices": [{key: delta, "finish_reason": None}]})
    draft.add({"choices": [{key: {}, "finish_reason": finish}], "usage": usage})
    return draft.outcome(SETTINGS, 5)


def fragment(index: int | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {k: v for k, v in (("name", more.pop("name", None)), ("arguments", arguments)) if v is not None}
    call: dict[str, Any] = {"function": function, **more}
    return {"tool_calls": [call if index is None else call | {"index": index}]}


def calls(*deltas: dict[str, Any], finish: str | None = "tool_calls") -> list[tuple[str, Any]]:
    response = outcome(*deltas, finish=finish)
    assert isinstance(response, ModelResponse), response
    return [(call.name, call.raw_args or call.args) for call in response.calls]


@pytest.mark.parametrize("finish", ["stop", "completed", None, "unexpected_tool_call", "tool_calls", "content_filter"])
def test_calls_decide_over_the_reason(finish: str | None) -> None:
    assert calls(fragment(0, '{"a":1}', name="f", id="x"), finish=finish) == [("f", {"a": 1})]


def test_fragments() -> None:
    # all numbered 0, each with an id of its own
    assert calls(fragment(0, "{}", name="f", id="a"), fragment(0, '{"x":1}', name="f", id="b")) == [
        ("f", {}),
        ("f", {"x": 1}),
    ]
    # numbered 0 with one constant id, whole calls
    assert calls(fragment(0, "{}", name="f", id="a"), fragment(0, "{}", name="g", id="a")) == [("f", {}), ("g", {})]
    # no numbers: an id begins a call, fragments without one go on
    assert calls(
        fragment(None, '{"a"', name="f", id="a"), fragment(None, ":1}"), fragment(None, None, name="g", id="b")
    ) == [
        ("f", {"a": 1}),
        ("g", {}),
    ]
    # the name repeated in each fragment
    assert calls(fragment(0, '{"a"', name="f", id="a"), fragment(0, ":1}", name="f", id="a")) == [("f", {"a": 1})]
    # another id in every fragment, without a name
    assert calls(fragment(0, '{"a"', name="f", id="a"), fragment(0, ":1}", id="b")) == [("f", {"a": 1})]
    # whole calls of a whole answer, all numbered 0 with one id
    same = {"index": 0, "id": "call_0", "function": {"name": "f"}}
    draft = Draft()
    draft.add({"choices": [{"message": {"tool_calls": [same, same]}, "finish_reason": "stop"}]})
    assert [call.tool_call_id for call in draft.outcome(SETTINGS, 5).calls] == ["call_5_0", "call_5_1"]  # type: ignore[union-attr]
    # arguments as an object, and the older single form
    assert calls(fragment(0, {"a": 1}, name="f")) == [("f", {"a": 1})]
    assert calls({"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}) == [
        ("f", {})
    ]


def test_calls_of_the_provider_are_not_ours() -> None:
    own = {
        "tool_calls": [
            {"index": 0, "id": "srvtoolu_1", "type": "function", "function": {"name": "web", "arguments": "{}"}}
        ]
    }
    response = outcome(own, {"content": "found"})
    assert response.calls == ()
    assert response.text == "found"
    assert isinstance(response.content[0], ReasoningBlock)
    assert "provider_calls" in response.content[0].data


@pytest.mark.parametrize(
    ("deltas", "finish", "kind"),
    [
        ([{"content": " \n"}], "stop", "empty_response"),
        ([{"reasoning_content": "hm"}], "end_turn", "empty_response"),
        ([{"content": "<think>hm"}], "stop", "empty_response"),
        ([{"reasoning_content": "hm"}], "length", "output_limit"),
        ([fragment(0, '{"a": "b', name="f", id="x")], "length", "output_limit"),
        ([fragment(0, None, name="f", id="x")], "max_tokens", "output_limit"),
        ([{"refusal": "I will not"}], "stop", "content_refusal"),
        ([{"content": "Well"}], "SAFETY", "content_refusal"),
        ([], "malformed_function_call", "malformed_tool_arguments"),
        ([], "model_context_window_exceeded", "context_overflow"),
        ([], "error", "unavailable"),
        ([{"content": "I"}], "error", "truncated_stream"),
    ],
)
def test_answers_that_are_failures(deltas: list[dict[str, Any]], finish: str, kind: str) -> None:
    failure = outcome(*deltas, finish=finish)
    assert isinstance(failure, ModelFailure)
    assert failure.kind == kind


def test_text_cut_at_the_output_limit_is_an_answer() -> None:
    response = outcome({"content": "half"}, finish="length")
    assert (response.text, response.stop_reason) == ("half", "output_limit")
    assert outcome({"content": "wait"}, finish="pause_turn").stop_reason == "other"


def test_signed_thinking_is_kept_exact_and_in_order() -> None:
    response = outcome(
        {"thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": None}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "b", "signature": None}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s=="}]},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": "xx"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "c"}]}, {"type": "text", "text": "T"}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"name": "f"}, "provider_specific_fields": {"thought_signature": "z"}}
            ]
        },
    )
    assert response.text == "T"
    assert response.content[0].data == {
        "thinking_blocks": [
            {"type": "thinking", "thinking": "ab", "signature": "s=="},
            {"type": "redacted_thinking", "data": "xx"},
        ],
        "reasoning_content": "c",
        "call_fields": {"call_5_0": {"thought_signature": "z"}},
    }


@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        ("plain", "plain", ""),
        ("<think>a\nb</think>\n\nanswer", "answer", "a\nb"),
        ("\n<think></think>answer", "answer", ""),
        ("<thinking>a</thinking><think>b</think>c", "c", "a\nb"),
        ("<think>never closed", "", "never closed"),
        ("opened by the template</think>\nanswer", "answer", "opened by the template"),
        ("first\n<think>then</think>\nlast", "first\nlast", "then"),
        ("```\n<think>quoted</think>\n```", "```\n<think>quoted</think>\n```", ""),
        ("the tag `</think>` ends it", "the tag `</think>` ends it", ""),
    ],
)
def test_thoughts_in_plain_text(text: str, answer: str, thought: str) -> None:
    assert split_thinking(text) == (answer, thought)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, (None, None, None, None)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, None, None, None)),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
            (10, 2, 8, None),
        ),
        (
            {"prompt_tokens": 676, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 960}},
            (676, 2, None, None),
        ),
        (
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5},
            (100, 2, 90, None),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 42,
                "completion_tokens_details": {"reasoning_tokens": 30},
            },
            (10, 32, None, 30),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 40,
                "total_tokens": 50,
                "completion_tokens_details": {"reasoning_tokens": 30},
            },
            (10, 40, None, 30),
        ),
        ({"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": None}, (None, None, None, None)),
    ],
)
def test_usage(usage: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    read = read_usage(usage)
    assert (read.input_tokens, read.output_tokens, read.cached_tokens, read.reasoning_tokens) == expected


def test_usage_of_a_stream_in_parts_and_in_growing_sums() -> None:
    parts = [{"prompt_tokens": 9, "completion_tokens": 0, "d": None}, {"prompt_tokens": 0, "completion_tokens": 4}]
    assert merged(parts) == {"prompt_tokens": 9, "completion_tokens": 4}
    sums = [{"completion_tokens": n, "details": {"reasoning_tokens": n - 1}} for n in (1, 2, 3)]
    assert merged(sums) == {"completion_tokens": 3, "details": {"reasoning_tokens": 2}}


@pytest.mark.parametrize(
    "text", ["{", "[]", '"s"', "1", '{"a": Infinity}', '{"a": 1e999}', '{"a":' * 500 + "1" + "}" * 500, "9" * 5000]
)
def test_arguments_that_are_no_object(text: str) -> None:
    assert parse_arguments(text) == ({}, text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "delta",
                "message",
                "content",
                "tool_calls",
                "function",
                "name",
                "arguments",
                "id",
                "index",
                "type",
                "usage",
                "error",
                "choices",
                "finish_reason",
                "thinking_blocks",
                "text",
                "function_call",
            ]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(["delta", "message", "finish_reason", "error"]), JSON), max_size=4), JSON
)
@settings(max_examples=200, deadline=None)
def test_no_shape_raises(choices: list[dict[str, Any]], other: Any) -> None:
    draft = Draft()
    for choice in choices:
        draft.add({"choices": [choice], "usage": other, "id": other})
    draft.add({"choices": other})
    result = draft.outcome(SETTINGS, 1)
    canonical_json(result.plain())
    if isinstance(result, ModelResponse):
        assert len({call.tool_call_id for call in result.calls}) == len(result.calls)


@given(st.text(), st.text())
def test_any_text_can_be_stored(text: str, arguments: str) -> None:
    surrogate = "\ud800"
    result = outcome({"content": "x" + text + surrogate}, fragment(0, arguments + surrogate, name=text + surrogate))
    canonical_json(result.plain())
