"""A script is checked when it is read, and the same call index always gives the same turn."""

from __future__ import annotations

import pytest

from salience.errors import UsageError
from salience.model.calls import ModelFailure
from salience.model.message import ModelResponse, Usage
from salience.providers.script import choose, outcome, parse

TEXT = """
turns:
  - text: Looking.
    tool_calls:
      - {name: read_file, args: {path: a.txt}}
      - {name: list_files}
    usage: {input_tokens: 10, output_tokens: 2}
  - error: overload
  - error: {kind: context_overflow, message: too long, prompt_tokens: 9000, limit_tokens: 8192}
  - {text: Done., delay_s: 0.1}
"""


def test_turns_in_canonical_form() -> None:
    script = parse(TEXT, "t.yaml")
    first = outcome(choose(script, 0, "t.yaml"), "script:t.yaml", 4)
    assert isinstance(first, ModelResponse)
    assert [(c.tool_call_id, c.name, c.args) for c in first.calls] == [
        ("call_4_0", "read_file", {"path": "a.txt"}),
        ("call_4_1", "list_files", {}),
    ]
    assert first.usage == Usage(input_tokens=10, output_tokens=2)
    assert first.stop_reason == "tool_calls"
    second = outcome(choose(script, 1, "t.yaml"), "script:t.yaml", 5)
    assert second == ModelFailure(kind="overload", message="the script says overload")
    third = outcome(choose(script, 2, "t.yaml"), "script:t.yaml", 5)
    assert isinstance(third, ModelFailure)
    assert (third.prompt_tokens, third.limit_tokens) == (9000, 8192)
    last = outcome(choose(script, 3, "t.yaml"), "script:t.yaml", 5)
    assert isinstance(last, ModelResponse)
    assert (last.text, last.stop_reason, last.usage) == (
        "Done.",
        "end_turn",
        Usage(),
    )


def test_json_with_tabs_is_read_too() -> None:
    assert parse('{\n\t"turns": [\n\t\t{"text": "x"}]}', "t.json").turns[0].text == "x"


def test_the_end_of_a_script() -> None:
    two = "turns: [{text: a}, {text: b}]\n"
    assert choose(parse(two + "on_end: cycle", "t"), 5, "t").text == "b"
    assert choose(parse(two + "on_end: repeat_last", "t"), 9, "t").text == "b"
    with pytest.raises(UsageError, match=r"script t has 2 turns, and this is model call 3"):
        choose(parse(two, "t"), 2, "t")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("turns: [", "neither YAML nor JSON"),
        ("- text: x", "no `turns:` list"),
        ("turns: []", "turns"),
        ("turns: [{text: a}, {txt: b}]", "turn 2: txt: Extra inputs"),
        ("turns: [{tool_calls: [{name: f, args: [1]}]}]", "turn 1: tool_calls.0.args"),
        ("turns: [{tool_calls: [{name: f, args: {d: 2020-01-01}}]}]", "no JSON object"),
        ("turns: [{tool_calls: [{name: f, args: {1: x}}]}]", "turn 1"),
        ("turns: [{tool_calls: [{name: f, args: {x: .nan}}]}]", "no JSON object"),
        ("turns: [{error: nonsense}]", "turn 1: error.kind"),
        ("turns: [{error: overload, text: x}]", "an error stands alone"),
        ("turns: [{text: a, delay_s: -1}]", "delay_s"),
        ("turns: [{text: a}]\nafter: stop", "after"),
    ],
)
def test_faults_are_one_line_that_names_the_place(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "t.yaml")
    assert fault in caught.value.line()
    assert "t.yaml" in caught.value.line()
    assert "\n" not in caught.value.line()


def test_an_empty_turn_is_an_empty_answer() -> None:
    failure = outcome(parse("turns: [{}]", "t").turns[0], "script:t", 1)
    assert isinstance(failure, ModelFailure)
    assert failure.kind == "empty_response"
