"""One model call: the answer is stored before it is returned, so that none is paid for twice (spec LOOP-5).

Providers are reached through litellm, which is imported in the process that calls models and nowhere else: it takes
seconds and 200 MB. A failure of the provider is classified and raised as non-retryable, for the workflow owns the
recovery; what Temporal retries is infrastructure, a dead worker or an absent store. Keys live in the environment of
this process, and no text leaves it that holds one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import ipaddress
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Compiled, Contexts
from salience.errors import UsageError
from salience.model.calls import CALL_MODEL, PREVIEW_BYTES, CallModel, CallPreview, ModelAnswer, ModelFailure
from salience.model.canonical import canonical_json
from salience.model.message import ModelResponse
from salience.model.session import ModelSettings
from salience.model.text import decode, preview
from salience.providers import chat, script
from salience.providers.answer import Draft
from salience.providers.failures import classify, one_line
from salience.providers.report import report_of_exception
from salience.providers.usage import merged
from salience.store.blobs import BlobStore
from salience.store.ledger import Ledger
from salience.telemetry.failpoints import failpoint

MAX_ANSWER_BYTES = 24 * 1024
"""An answer in history, whatever the number of its calls: under the 32 KiB of any activity result, with room."""
PLACEHOLDER_KEY = "not-needed"


class ModelActivities:
    """The model activity and what it needs."""

    def __init__(self, blobs: BlobStore, ledger: Ledger, contexts: Contexts) -> None:
        self._blobs = blobs
        self._ledger = ledger
        self._contexts = contexts
        self._scripts: dict[str, tuple[tuple[int, int, int], script.Script]] = {}

    async def warm(self) -> None:
        """Load the provider library ahead of the first call; for workers whose model is not a script."""
        await asyncio.to_thread(_litellm)

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, call: CallModel) -> ModelAnswer:
        """Call the model once with a compiled context.

        Returns:
            The stored answer, by reference.

        Raises:
            ApplicationError: the provider gave no answer; its type is the kind, its detail a `ModelFailure`.
        """
        info = activity.info()
        run_id = info.workflow_run_id or ""
        if info.attempt > 1:
            stored = await self._ledger.stored_answer(call.session_id, run_id, info.activity_id)
            if stored is not None:
                return ModelAnswer.model_validate(stored)
        compiled = await self._contexts.compiled(call.session_id, call.bundle_id)
        failpoint("model.before_call")
        began = time.monotonic()
        outcome = await self._outcome(call, compiled)
        duration_ms = round((time.monotonic() - began) * 1000)
        failpoint("model.after_call")
        if isinstance(outcome, ModelFailure):
            raise _refused(outcome)
        ref = await self._blobs.put(canonical_json(outcome.plain()))
        answer = _answer(outcome, ref, duration_ms, asked=call.model)
        await self._ledger.store_answer(call.session_id, run_id, info.activity_id, answer.plain())
        failpoint("model.after_store")
        return answer

    async def _outcome(self, call: CallModel, compiled: Compiled) -> ModelResponse | ModelFailure:
        settings = compiled.model_settings
        if settings.provider == "script":
            return await self._scripted(call, settings)
        litellm = await asyncio.to_thread(_litellm)
        return await _asked(litellm, call.turn, compiled)

    async def _scripted(self, call: CallModel, settings: ModelSettings) -> ModelResponse | ModelFailure:
        path = settings.model.removeprefix("script:")
        try:
            scripted = script.choose(await asyncio.to_thread(self._script, path), call.call_index, path)
        except UsageError as error:
            return ModelFailure(kind="bad_request", message=one_line(error.line()))
        if scripted.delay_s > settings.timeout_s:
            await asyncio.sleep(settings.timeout_s)
            return _timed_out(settings)
        await asyncio.sleep(scripted.delay_s)
        return script.outcome(scripted, settings.model, call.turn)

    def _script(self, path: str) -> script.Script:
        """The parsed file; a file that was changed is read again."""
        try:
            stat = os.stat(path)
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if (kept := self._scripts.get(path)) is not None and kept[0] == stamp:
                return kept[1]
            text = decode(Path(path).read_bytes())
        except OSError as error:
            raise UsageError(f"script {path} cannot be read: {error.strerror or error}") from None
        parsed = script.parse(text, path)
        if len(self._scripts) >= 32:
            self._scripts.clear()
        self._scripts[path] = (stamp, parsed)
        return parsed


def _refused(failure: ModelFailure) -> ApplicationError:
    return ApplicationError(failure.message, failure.plain(), type=failure.kind, non_retryable=True)


def _timed_out(settings: ModelSettings) -> ModelFailure:
    return ModelFailure(
        kind="timeout", message=f"{settings.model} gave no whole answer within {settings.timeout_s:g} s"
    )


def _answer(response: ModelResponse, ref: str, duration_ms: int, *, asked: str) -> ModelAnswer:
    """The answer as history holds it; where many calls leave no room, their previews shrink.

    Raises:
        ApplicationError: not even the bare names fit; the answer is a run-away, and no loop could execute it.
    """
    calls = response.calls
    for limit in (PREVIEW_BYTES, 80, 24, 0):
        answer = ModelAnswer(
            response_ref=ref,
            model="" if response.model == asked else response.model,
            stop_reason=response.stop_reason,
            usage=response.usage,
            text_preview=preview(response.text, PREVIEW_BYTES),
            calls=tuple(
                CallPreview(
                    tool_call_id=call.tool_call_id,
                    name=call.name,
                    args_preview=preview(call.raw_args or canonical_json(call.args).decode(), limit) if limit else "",
                )
                for call in calls
            ),
            duration_ms=duration_ms,
        )
        if len(answer.model_dump_json()) < MAX_ANSWER_BYTES:
            return answer
    message = f"the model asked for {len(calls)} calls in one answer, more than a turn can hold"
    raise _refused(ModelFailure(kind="malformed_tool_arguments", message=message))


@functools.cache
def _litellm() -> Any:
    """litellm, quiet and without retries or network of its own. Takes seconds: call it in a thread."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    # In its development mode it reads a .env file of the working directory into the environment.
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.num_retries = 0
    # Its guard against repetition turns a table of equal rows into a server error.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


async def _asked(litellm: Any, turn: int, compiled: Compiled) -> ModelResponse | ModelFailure:
    """One request to a provider, and its answer in canonical form."""
    settings = compiled.model_settings
    request = chat.payload(compiled.messages, compiled.tools, settings, stream=settings.stream)
    credentials = _credentials(litellm, settings, bool(compiled.tools))
    if isinstance(credentials, ModelFailure):
        return credentials
    draft = Draft()
    try:
        async with asyncio.timeout(settings.timeout_s):
            async with contextlib.aclosing(_chunks(litellm, request | credentials, draft)) as chunks:
                async for chunk in chunks:
                    draft.add(chunk)
    except TimeoutError:
        return _timed_out(settings)
    except _ProviderError as error:
        if not isinstance(cause := error.__cause__, Exception):
            raise
        # A stream without a finish reason is whole when its calls are and the usage came: the calls decide.
        if not (draft.calls_whole and draft.usage and _ended(cause)):
            report = report_of_exception(cause, started=draft.started)
            return _about(classify(report, secrets=_secrets(), now=datetime.now(UTC)), settings)
    outcome = draft.outcome(settings, turn)
    return _about(outcome, settings) if isinstance(outcome, ModelFailure) else outcome


class _ProviderError(Exception):
    """Carries what the provider library raised as its cause, apart from faults of our own."""


async def _chunks(litellm: Any, request: Mapping[str, Any], draft: Draft) -> AsyncGenerator[dict[str, Any]]:
    """The answer as plain data: chunks of a stream, or one whole completion."""
    stream: Any = None
    try:
        try:
            answer = await litellm.acompletion(**request)
            if not request["stream"]:
                yield answer.model_dump()
                return
            stream = answer
            async for chunk in stream:
                data = chunk.model_dump()
                data.pop("usage", None)
                yield data
        finally:
            if stream is not None:
                draft.usage = _reported_usage(stream)
                # An interrupt must also end the request: the provider stops computing, and bills no more.
                await stream.aclose()
    except Exception as error:
        raise _ProviderError from error


def _reported_usage(stream: Any) -> dict[str, Any]:
    """The usage the provider sent with its chunks; the library invents one where none came, which is no report."""
    reports = [usage for chunk in getattr(stream, "chunks", ()) if (usage := getattr(chunk, "usage", None)) is not None]
    return merged(usage.model_dump() for usage in reports)


def _ended(error: Exception) -> bool:
    """Whether a stream came to its end, only without a finish reason."""
    return "finish_reason" in str(error) or "finish reason" in str(error)


def _credentials(litellm: Any, settings: ModelSettings, tools: bool) -> dict[str, Any] | ModelFailure:
    """What a request carries beside its payload; a failure when no request could succeed."""
    model = settings.model
    try:
        _, provider, _, _ = litellm.get_llm_provider(model, api_base=settings.api_base)
    except Exception:
        return _bad_request(
            f"unknown provider {settings.provider!r} in model {model!r}: use provider/model as litellm names it"
        )
    supported: Any = None
    with contextlib.suppress(Exception):
        supported = litellm.get_supported_openai_params(model, custom_llm_provider=provider)
    if tools and supported and "tools" not in supported:
        return _bad_request(f"{model} takes no tools, by litellm's account of {provider}")
    more: dict[str, Any] = {
        # What a model does not take, such as a temperature, is left out instead of refused.
        "drop_params": True,
        "num_retries": 0,
        "max_retries": 0,
        "timeout": settings.timeout_s,
    }
    if settings.api_base:
        more["api_base"] = settings.api_base
    missing: list[str] = litellm.validate_environment(model).get("missing_keys") or []
    # Other kinds of credentials (cloud profiles, tokens) may be found where no variable tells; the provider will say.
    if missing and all(name.endswith("_API_KEY") for name in missing):
        if settings.api_base and _is_local(settings.api_base):
            more["api_key"] = PLACEHOLDER_KEY
        else:
            named = " or ".join(missing)
            return ModelFailure(kind="auth", message=f"{model} needs {named} in the environment of the worker")
    return more


def _bad_request(message: str) -> ModelFailure:
    return ModelFailure(kind="bad_request", message=one_line(message))


def _is_local(url: str) -> bool:
    """Whether a URL names this machine or its private network, where servers often take no key."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host != "" and ("." not in host or host.endswith((".local", ".internal", ".localhost")))


def _about(failure: ModelFailure, settings: ModelSettings) -> ModelFailure:
    """The failure with what a provider's words lack: which model, and where it was asked."""
    url = urlsplit(settings.api_base or "")
    where = f" at {url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if settings.api_base else ""
    message = one_line(f"{settings.model}{where}: {failure.message}", secrets=_secrets())
    return failure.model_copy(update={"message": message})


def _secrets() -> list[str]:
    """The values of this process's environment that no message may show."""
    marks = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
    return [
        value for name, value in os.environ.items() if any(mark in name.upper() for mark in marks) and len(value) >= 8
    ]
