"""An estimate is never more than 5 % under o200k_base, and not absurdly over it (spec CTX-6)."""

from __future__ import annotations

import base64
import json
import random
import sys
from pathlib import Path

import pytest

from salience.context.estimate import ESTIMATE_VERSION, estimate
from salience.context.tokens import Tokenizer, tokenizer_for
from salience.model.message import ModelResponse, ReasoningBlock, TextBlock, ToolCallBlock

DICE = random.Random(7)
HERE = Path(__file__)
CLASSES = {
    "code": HERE.read_text(),
    "prose": "The goal of this project is to let agents that run for days go on working inside a limited context. " * 9,
    "chinese": "这个项目的目标是让智能代理在上下文有限的情况下继续工作。请检查测试是否通过，然后修复失败的部分。" * 9,
    "japanese": "このプロジェクトの目的は、エージェントが限られた文脈で作業を続けられるようにすることです。" * 9,
    "korean": "이 프로젝트의 목표는 제한된 컨텍스트에서 장시간 실행되는 에이전트가 작업을 계속하게 하는 것입니다." * 9,
    "russian": "Цель этого проекта — позволить долго работающим агентам продолжать работу. " * 9,
    "arabic": "هدف هذا المشروع هو السماح للوكلاء بمواصلة العمل في سياق محدود. " * 9,
    "hindi": "इस परियोजना का उद्देश्य सीमित संदर्भ में एजेंटों को काम जारी रखने देना है। " * 9,
    "base64": base64.b64encode(DICE.randbytes(6_000)).decode(),
    "base64 lines": base64.encodebytes(DICE.randbytes(6_000)).decode(),
    "hex": DICE.randbytes(4_000).hex(),
    "hashes": "\n".join(f"{DICE.randbytes(32).hex()}  file{at}.py" for at in range(80)),
    "emoji": "😀🎉🚀👍🏽👨‍👩‍👧‍👦🇩🇪❤️🔥✨🧑‍💻" * 30,
    "json": json.dumps([{"id": at, "name": f"item {at}", "ok": True, "price": at * 1.37} for at in range(200)]),
    "json compact": json.dumps([{"id": at, "tags": ["a", "b"]} for at in range(200)], separators=(",", ":")),
    "json indented": json.dumps([{"id": at, "name": f"item {at}"} for at in range(200)], indent=2),
    "log": "\n".join(f"2026-03-01 12:00:{at % 60:02d},{at:03d} INFO GET /v1/items/{at * 79} 200" for at in range(200)),
    "ansi": "\x1b[31mFAILED\x1b[0m tests/test_x.py::test_y - assert 1 == 2\n" * 40,
    "boxes": "┌──────┬─────┐\n│ a    │ b   │\n└──────┴─────┘\n" * 40,
    "digits": "".join(DICE.choice("0123456789") for _ in range(3_000)),
    "letters": "".join(DICE.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(3_000)),
    "capitals": "".join(DICE.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(3_000)),
    "punctuation": "".join(DICE.choice("!#$%&()*+,-./:;<=>?@[]^_{|}~") for _ in range(3_000)),
    "breaks": "\n    " * 500,
    "tabs": "\t" * 2_000,
    "replacement characters": "\ufffd" * 500,
}
BLANKS = {"breaks", "tabs", "replacement characters"}


@pytest.mark.parametrize("name", CLASSES)
def test_the_estimate_is_conservative(name: str) -> None:
    exact = tokenizer_for("openai/gpt-4o")
    assert exact.name == "o200k_base"
    counted = exact.text(CLASSES[name])
    assert estimate(CLASSES[name]) >= 0.95 * counted
    assert estimate(CLASSES[name]) <= 3.2 * counted


def test_litellm_is_not_imported_to_find_its_tables() -> None:
    import subprocess

    script = (
        "import sys; from salience.context import tokenizer_for; tokenizer_for('openai/gpt-4o').text('x');"
        "assert 'litellm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai/gpt-4o-mini", "o200k_base"),
        ("azure/gpt-4", "cl100k_base"),
        ("openrouter/openai/gpt-5", "o200k_base"),
        ("anthropic/claude-sonnet-4-5", ESTIMATE_VERSION),
        ("openai/some-local-model", ESTIMATE_VERSION),
        ("script:turns.yaml", ESTIMATE_VERSION),
    ],
)
def test_a_tokenizer_is_exact_only_where_the_table_is_the_models_own(model: str, name: str) -> None:
    assert tokenizer_for(model).name == name


def test_a_text_is_counted_once() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 1

    tokenizer = Tokenizer("one", count)
    for _ in range(3):
        tokenizer.text("abc", "digest")
        tokenizer.lines("a\nb\na")
    assert sorted(asked) == ["a", "abc", "b"]


def test_calls_and_reasoning_count() -> None:
    tokenizer = tokenizer_for("script:x")
    text = ModelResponse(model="m", content=(TextBlock(text="ok"),), stop_reason="end_turn")
    call = ToolCallBlock(tool_call_id="c", name="run", args={"command": "make all"})
    with_call = ModelResponse(model="m", content=(*text.content, call), stop_reason="tool_calls")
    opaque = ReasoningBlock(provider="p", model="m", data={"encrypted": "A" * 400})
    with_both = ModelResponse(model="m", content=(*with_call.content, opaque), stop_reason="tool_calls")
    sizes = [tokenizer.response(response, str(at)) for at, response in enumerate((text, with_call, with_both))]
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_text_no_window_holds_is_not_counted() -> None:
    def count(text: str) -> int:
        raise AssertionError(len(text))

    assert Tokenizer("never", count).text("x" * 5_000_000) == 2_500_000
