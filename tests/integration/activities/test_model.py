"""The model activity over real HTTP and the real ledger: what is sent, how it fails; nothing is paid for twice."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.context import Compiled, Contexts
from activities.model import MAX_ANSWER_BYTES, ModelActivities
from salience.model.calls import CallModel, ModelAnswer, ModelFailure
from salience.model.message import CompiledMessage, ModelResponse, ReasoningBlock, TextBlock
from salience.model.session import ModelSettings, SessionConfig
from salience.model.tool import ToolSpec
from salience.settings import Settings
from salience.store.blobs import FileBlobs
from salience.worker import Stores
from tests.chat_server import ChatServer, Reply, call_delta, chunk, completion, text_stream

TOOL = ToolSpec(
    name="read_file",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}},
    tool_class="read",
)
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 7,
    "total_tokens": 127,
    "prompt_tokens_details": {"cached_tokens": 100},
}
MESSAGES = (
    CompiledMessage(role="system", content=(TextBlock(text="Be brief."),)),
    CompiledMessage(role="user", content=(TextBlock(text="Hello"),)),
)


class Desk:
    """Activities over the real ledger and one context, and calls made through them."""

    def __init__(self, folder: Path, stores: Stores, session_id: str) -> None:
        self.blobs = FileBlobs(folder)
        self.ledger = stores.ledger
        self.session_id = session_id
        self._contexts = Contexts(stores.journal, stores.bundles, self.blobs)
        self._asked = 0

    def activities(self, settings: ModelSettings) -> ModelActivities:
        compiled = Compiled(MESSAGES, (TOOL,), settings)
        config = SessionConfig(cwd="/", model_settings=settings)
        self._contexts.keep(self.session_id, "", "b", compiled, config)
        return ModelActivities(self.blobs, self.ledger, self._contexts)

    def environment(self, *, activity_id: str = "call", attempt: int = 1) -> ActivityEnvironment:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, activity_id=activity_id, attempt=attempt)
        return environment

    def made(self, settings: ModelSettings, call_index: int = 0) -> CallModel:
        return CallModel(session_id=self.session_id, turn=3, bundle_id="b", call_index=call_index, model=settings.model)

    async def stored(self, environment: ActivityEnvironment) -> dict[str, Any] | None:
        info = environment.info
        return await self.ledger.stored_answer(self.session_id, info.workflow_run_id or "", info.activity_id)

    async def call(self, settings: ModelSettings, *, call_index: int = 0) -> ModelAnswer:
        self._asked += 1
        environment = self.environment(activity_id=str(self._asked))
        try:
            answer = await environment.run(self.activities(settings).call_model, self.made(settings, call_index))
        except ApplicationError:
            assert await self.stored(environment) is None
            raise
        assert await self.stored(environment) == answer.plain()
        return answer

    async def answer(self, settings: ModelSettings) -> tuple[ModelAnswer, ModelResponse]:
        answer = await self.call(settings)
        return answer, ModelResponse.model_validate_json(await self.blobs.get(answer.response_ref))

    async def failure(self, settings: ModelSettings, *, call_index: int = 0) -> ModelFailure:
        with pytest.raises(ApplicationError) as caught:
            await self.call(settings, call_index=call_index)
        assert caught.value.non_retryable
        failure = ModelFailure.model_validate(caught.value.details[0])
        assert caught.value.type == failure.kind
        assert "\n" not in failure.message
        assert 0 < len(failure.message.encode()) <= 500
        return failure


@pytest.fixture
async def desk(tmp_path: Path, settings: Settings, session_id: str) -> AsyncIterator[Desk]:
    stores = Stores.of(settings)
    yield Desk(tmp_path / "blobs", stores, session_id)
    await stores.postgres.close()


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    async with ChatServer() as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)


def at(server: ChatServer, **more: Any) -> ModelSettings:
    return ModelSettings(model="openai/test-model", api_base=server.url, **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_plain_text(desk: Desk, server: ChatServer, stream: bool) -> None:
    whole = Reply(body=completion({"content": "Hello, you."}, usage=USAGE))
    server.replies = [text_stream("Hello", ", you.", usage=USAGE) if stream else whole]
    answer, response = await desk.answer(at(server, stream=stream, temperature=0.5, max_output_tokens=77))
    assert response.text == "Hello, you."
    assert (answer.stop_reason, answer.text_preview, answer.calls) == ("end_turn", "Hello, you.", ())
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.cached_tokens) == (120, 7, 100)
    assert response.model == "openai/test-model"
    assert response.provider_response_id
    sent = server.requests[0]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (sent["model"], sent["temperature"], sent.get("stream", False)) == ("test-model", 0.5, stream)
    assert 77 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
    assert sent["tools"][0]["function"]["name"] == "read_file"


async def test_usage_that_was_not_reported_is_unknown(desk: Desk, server: ChatServer) -> None:
    server.replies = [text_stream("Hello")]
    answer, _ = await desk.answer(at(server))
    assert answer.usage.input_tokens is None
    assert answer.usage.output_tokens is None


async def test_parallel_calls_in_interleaved_fragments(desk: Desk, server: ChatServer) -> None:
    server.replies = [
        Reply(
            chunks=[
                chunk({"role": "assistant", "content": "Looking."}),
                chunk(call_delta(0, "", id="x", name="read_file")),
                chunk(call_delta(1, "", id="x", name="read_file")),
                chunk(call_delta(1, '{"path":')),
                chunk(call_delta(0, '{"path": "a')),
                chunk(call_delta(1, ' "b"}')),
                chunk(call_delta(0, '.txt"}')),
                chunk(call_delta(2, "", id="", name="read_file")),
                chunk(finish="stop"),
                chunk(usage=USAGE),
            ]
        )
    ]
    answer, response = await desk.answer(at(server))
    assert [call.args for call in response.calls] == [{"path": "a.txt"}, {"path": "b"}, {}]
    assert [call.tool_call_id for call in answer.calls] == ["call_3_0", "call_3_1", "call_3_2"]
    assert answer.stop_reason == "tool_calls"
    assert response.text == "Looking."
    assert answer.usage.input_tokens == 120


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "args", "raw"),
    [
        (None, {}, None),
        ("", {}, None),
        ('{"path": "a"', {}, '{"path": "a"'),
        ("[1]", {}, "[1]"),
        ('{"n": NaN}', {}, '{"n": NaN}'),
        ('{"p": "\\ud800"}', {"p": "\ufffd"}, None),
    ],
)
async def test_arguments_of_all_kinds(
    desk: Desk, server: ChatServer, stream: bool, arguments: str | None, args: dict[str, Any], raw: str | None
) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "read_file"}}
    if arguments is not None:
        call["function"] |= {"arguments": arguments}  # type: ignore[operator]
    whole = Reply(body=completion({"content": None, "tool_calls": [call]}, finish="tool_calls"))
    parts = [chunk(call_delta(0, arguments, id="call_0", name="read_file")), chunk(finish="tool_calls")]
    server.replies = [Reply(chunks=parts) if stream else whole]
    _, response = await desk.answer(at(server, stream=stream))
    assert [(call.args, call.raw_args) for call in response.calls] == [(args, raw)]


async def test_duplicate_ids_become_distinct(desk: Desk, server: ChatServer) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    server.replies = [Reply(body=completion({"content": "", "tool_calls": [call, call]}, finish="stop"))]
    _, response = await desk.answer(at(server, stream=False))
    assert [call.tool_call_id for call in response.calls] == ["call_3_0", "call_3_1"]


async def test_reasoning_is_opaque(desk: Desk, server: ChatServer) -> None:
    server.replies = [
        Reply(
            chunks=[
                chunk({"role": "assistant", "reasoning_content": "let me "}),
                chunk({"reasoning_content": "think"}),
                chunk({"content": "42"}),
                chunk(finish="stop"),
            ]
        )
    ]
    answer, response = await desk.answer(at(server))
    assert response.text == answer.text_preview == "42"
    block = response.content[0]
    assert isinstance(block, ReasoningBlock)
    assert block.data["reasoning_content"] == "let me think"
    assert (block.provider, block.model) == ("openai", "openai/test-model")


Case = tuple[Reply, str, int | None, Callable[[ModelFailure], bool]]


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": None, "param": None, "code": None, **more}}


REFUSALS: dict[str, Case] = {
    "rate": (
        Reply(429, error("slow down"), headers={"Retry-After": "7"}),
        "rate_limit",
        429,
        lambda f: f.retry_after_s == 7,
    ),
    "auth": (
        Reply(401, error("Incorrect API key provided: sk-abcdef1234567890")),
        "auth",
        401,
        lambda f: "sk-a" not in f.message,
    ),
    "overflow": (
        Reply(400, error("Your prompt holds 9100 tokens but the window of this model is only 8192 tokens")),
        "context_overflow",
        400,
        lambda f: (f.prompt_tokens, f.limit_tokens) == (9100, 8192),
    ),
    "less output": (
        Reply(
            400,
            error("Too long: 7000 tokens in the messages and 2000 in the completion exceed the context length of 8192"),
        ),
        "lower_output_needed",
        400,
        lambda f: (f.prompt_tokens, f.limit_tokens) == (7000, 8192),
    ),
    "bad": (Reply(400, error("temperature must be lower")), "bad_request", 400, lambda f: "temperature" in f.message),
    "unknown model": (
        Reply(404, error("The model `nope` does not exist")),
        "bad_request",
        404,
        lambda f: "nope" in f.message,
    ),
    "server": (Reply(500, error("boom")), "unavailable", 500, lambda f: "boom" in f.message),
    "overload": (Reply(503, error("try later")), "overload", 503, lambda f: True),
    "no json": (Reply(502, "<html>bad gateway</html>"), "unavailable", 502, lambda f: True),
    "error in a 200": (Reply(200, error("Upstream rate limit exceeded", code=429)), "rate_limit", None, lambda f: True),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals(desk: Desk, server: ChatServer, name: str, stream: bool) -> None:
    reply, kind, status, holds = REFUSALS[name]
    server.replies = [reply]
    failure = await desk.failure(at(server, stream=stream))
    if name == "error in a 200" and stream:
        return  # a body that is no stream, where one was asked for: any failure is right
    assert failure.kind == kind, failure
    assert status is None or failure.status == status
    assert holds(failure), failure
    assert len(server.requests) == 1, "the library must not retry"


async def test_error_object_inside_a_stream(desk: Desk, server: ChatServer) -> None:
    server.replies = [Reply(chunks=[chunk({"content": "I"}), error("The server is overloaded", code=503)])]
    assert (await desk.failure(at(server))).kind == "overload"


async def test_stream_cut_in_the_middle(desk: Desk, server: ChatServer) -> None:
    server.replies = [Reply(chunks=[chunk({"content": "I will"})], cut=True)]
    assert (await desk.failure(at(server))).kind == "truncated_stream"


async def test_stream_that_ends_without_a_reason(desk: Desk, server: ChatServer) -> None:
    server.replies = [Reply(chunks=[chunk({"content": "I will"})])]
    assert (await desk.failure(at(server))).kind == "truncated_stream"


async def test_calls_decide_where_no_reason_came(desk: Desk, server: ChatServer) -> None:
    parts = [chunk(call_delta(0, '{"path": "a"}', id="x", name="read_file")), chunk(usage=USAGE)]
    server.replies = [Reply(chunks=parts)]
    _, response = await desk.answer(at(server))
    assert response.calls[0].args == {"path": "a"}


@pytest.mark.parametrize(
    ("message", "finish", "kind"),
    [
        ({"content": ""}, "stop", "empty_response"),
        ({"content": None, "reasoning_content": "hm"}, "stop", "empty_response"),
        ({"content": "", "reasoning_content": "hm"}, "length", "output_limit"),
        ({"content": "I can"}, "content_filter", "content_refusal"),
    ],
)
async def test_answers_that_are_none(
    desk: Desk, server: ChatServer, message: dict[str, Any], finish: str, kind: str
) -> None:
    server.replies = [Reply(body=completion(message, finish=finish))]
    assert (await desk.failure(at(server, stream=False))).kind == kind


async def test_refused_connection(desk: Desk) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    settings = ModelSettings(model="openai/test-model", api_base=f"http://127.0.0.1:{port}/v1")
    failure = await desk.failure(settings)
    assert failure.kind == "unavailable"
    assert str(port) in failure.message


async def test_timeout(desk: Desk, server: ChatServer) -> None:
    server.replies = [Reply(body=completion({"content": "late"}), delay_s=20)]
    began = time.monotonic()
    failure = await desk.failure(at(server, timeout_s=0.5))
    assert failure.kind == "timeout"
    assert time.monotonic() - began < 10


async def test_missing_key_is_named_before_any_request(desk: Desk) -> None:
    failure = await desk.failure(ModelSettings(model="openai/gpt-4o"))
    assert failure.kind == "auth"
    assert failure.message == "openai/gpt-4o needs OPENAI_API_KEY in the environment of the worker"


async def test_unknown_provider(desk: Desk) -> None:
    failure = await desk.failure(ModelSettings(model="nosuch/model"))
    assert failure.kind == "bad_request"
    assert "'nosuch'" in failure.message


async def test_key_of_the_environment_is_sent_and_never_told(
    desk: Desk, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "very private words")
    server.replies = [Reply(401, error("no access with very private words"))]
    failure = await desk.failure(at(server))
    assert server.keys == ["Bearer very private words"]
    assert "private" not in failure.message
    assert "[redacted]" in failure.message


@pytest.mark.parametrize("stream", [False, True])
async def test_interrupt_ends_the_request(desk: Desk, server: ChatServer, stream: bool) -> None:
    whole = Reply(body=completion({"content": "late"}), delay_s=20)
    server.replies = [Reply(chunks=[chunk({"content": "x"})] * 100, pause_s=0.2) if stream else whole]
    settings = at(server, stream=stream)
    environment = desk.environment()
    activities = desk.activities(settings)
    running = asyncio.create_task(environment.run(activities.call_model, desk.made(settings)))
    await server.asked.wait()
    await asyncio.sleep(0.5)
    began = time.monotonic()
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(server.gone.wait(), 5)
    assert time.monotonic() - began < 3
    assert await desk.stored(environment) is None


async def test_stored_answer_is_not_paid_for_twice(desk: Desk, server: ChatServer) -> None:
    server.replies = [text_stream("once"), text_stream("twice")]
    settings = at(server)
    activities = desk.activities(settings)
    first = await desk.environment().run(activities.call_model, desk.made(settings))
    second = await desk.environment(attempt=2).run(activities.call_model, desk.made(settings))
    assert first == second
    assert len(server.requests) == 1


@pytest.mark.parametrize(("count", "name"), [(200, "read_file"), (40, "n" * 64)])
async def test_answer_stays_small_whatever_it_asks_for(desk: Desk, server: ChatServer, count: int, name: str) -> None:
    function = {"name": name, "arguments": json.dumps({"text": "ü" * 2000})}
    calls = [{"id": f"c{i}", "type": "function", "function": function} for i in range(count)]
    server.replies = [Reply(body=completion({"content": "x" * 5000, "tool_calls": calls}, finish="tool_calls"))]
    answer, response = await desk.answer(at(server, stream=False))
    assert len(answer.calls) == len(response.calls) == count
    assert len(answer.model_dump_json()) < MAX_ANSWER_BYTES


SCRIPT = """
turns:
  - text: first
    tool_calls: [{name: read_file, args: {path: a}}]
    usage: {input_tokens: 9}
  - error: {kind: rate_limit, retry_after_s: 2}
  - {text: slow, delay_s: 30}
"""


async def test_script_answers_by_the_index_of_the_call(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "turns.yaml"
    path.write_text(SCRIPT)
    settings = ModelSettings(model=f"script:{path}")
    answer = await desk.call(settings)
    assert answer.calls[0].tool_call_id == "call_3_0"
    assert answer.usage.input_tokens == 9
    failure = await desk.failure(settings, call_index=1)
    assert (failure.kind, failure.retry_after_s) == ("rate_limit", 2)
    failure = await desk.failure(settings, call_index=3)
    assert failure.kind == "bad_request"
    assert str(path) in failure.message
    assert "3 turns" in failure.message
    path.write_text("turns: [{text: changed}]")
    assert (await desk.call(settings)).text_preview == "changed"


async def test_slow_script_is_interrupted(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "turns.yaml"
    path.write_text(SCRIPT)
    settings = ModelSettings(model=f"script:{path}")
    environment = desk.environment()
    activities = desk.activities(settings)
    running = asyncio.create_task(environment.run(activities.call_model, desk.made(settings, 2)))
    await asyncio.sleep(1)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_missing_script_is_one_clear_line(desk: Desk, tmp_path: Path) -> None:
    failure = await desk.failure(ModelSettings(model=f"script:{tmp_path}/none.yaml"))
    assert failure.kind == "bad_request"
    assert "none.yaml cannot be read: No such file" in failure.message
