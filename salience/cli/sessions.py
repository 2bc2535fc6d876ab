"""Commands that set a session to work: each returns when the session has acknowledged, or follows it to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salience.cli.complaint import INTERRUPTED, UNAVAILABLE, one_line
from salience.cli.connection import connected
from salience.cli.options import File, Follow, Json, MessageId, Model, SessionId, Words, model_name, words_of
from salience.cli.output import clean, json_out, tell, warn
from salience.cli.output import say as out
from salience.cli.timeline import counted
from salience.errors import SalienceError, SessionFailed
from salience.model.session import GOOD_ENDINGS

if TYPE_CHECKING:
    from salience.cli.configuration import Asked
    from salience.cli.follow import Ending
    from salience.client import Salience
    from salience.model.session import ContextConfig, ModelSettings, SessionConfig
    from salience.projection.projection import SavedProjection

_new = {"show_default": False}
Task = Annotated[
    str | None, typer.Argument(metavar="TASK", help="The task in words; `-` reads it from stdin.", show_default=False)
]
TaskFile = Annotated[Path | None, typer.Option("--file", help="Read the task from a file.", **_new)]
Session = Annotated[
    str | None, typer.Option("--session", help="Id of the session; one that exists is given the task as input.", **_new)
]
Cwd = Annotated[Path | None, typer.Option("--cwd", help="Folder to work in; the present one by default.", **_new)]
Window = Annotated[int | None, typer.Option("--window", help="Context window of the model, in tokens.", **_new)]
Reserve = Annotated[int | None, typer.Option("--reserve", help="Tokens kept free for an answer.", **_new)]
Sandbox = Annotated[
    str | None,
    typer.Option("--sandbox", help="read_only, workspace_write (the default) or danger_full_access.", **_new),
]
Network = Annotated[
    bool | None, typer.Option("--network/--no-network", help="Let sandboxed commands use the network.", **_new)
]
Approvals = Annotated[
    str | None, typer.Option("--approvals", help="Approval policy; this release has only `never`.", **_new)
]
Tools = Annotated[str | None, typer.Option("--tools", help="Names of the tools offered, by comma; else all.", **_new)]
Constraint = Annotated[
    list[str] | None, typer.Option("--constraint", help="Something that must hold throughout; may be repeated.", **_new)
]
Accept = Annotated[
    list[str] | None, typer.Option("--accept", help="When the task is done, in words; may be repeated.", **_new)
]
MaxCalls = Annotated[int | None, typer.Option("--max-model-calls", help="Model calls before the run ends.", **_new)]
MaxOutput = Annotated[int | None, typer.Option("--max-output-tokens", help="Longest answer, in tokens.", **_new)]
ApiBase = Annotated[str | None, typer.Option("--api-base", help="Base URL of an OpenAI-compatible server.", **_new)]
Config = Annotated[
    Path | None, typer.Option("--config", help="A SessionConfig as TOML, YAML or JSON; options go before it.", **_new)
]


def start(
    task: Task = None, file: TaskFile = None, session: Session = None, cwd: Cwd = None, model: Model = None,
    window: Window = None, reserve: Reserve = None, sandbox: Sandbox = None, network: Network = None,
    approvals: Approvals = None, tools: Tools = None, constraint: Constraint = None, accept: Accept = None,
    max_model_calls: MaxCalls = None, max_output_tokens: MaxOutput = None, api_base: ApiBase = None,
    config: Config = None, message_id: MessageId = None, json_: Json = False,
) -> None:  # fmt: skip
    """Start a session with a task and return when the task is acknowledged.

    Prints the session's id. With --session it is idempotent: the same task is taken once, another one is further input.
    """
    asked = _asked(
        cwd, model, window, reserve, sandbox, network, approvals, tools, constraint, accept, max_model_calls,
        max_output_tokens, api_base, config,
    )  # fmt: skip
    session_id, words = _named(session), words_of(task, file, "task")
    config = _config(asked) if session is None else None

    async def work(client: Salience) -> None:
        await _begin(client, session_id, words, asked, message_id, config)

    connected(work)
    if json_:
        json_out({"session_id": session_id})
    else:
        out(session_id)


def run(
    task: Task = None, file: TaskFile = None, session: Session = None, cwd: Cwd = None, model: Model = None,
    window: Window = None, reserve: Reserve = None, sandbox: Sandbox = None, network: Network = None,
    approvals: Approvals = None, tools: Tools = None, constraint: Constraint = None, accept: Accept = None,
    max_model_calls: MaxCalls = None, max_output_tokens: MaxOutput = None, api_base: ApiBase = None,
    config: Config = None, message_id: MessageId = None, json_: Json = False,
) -> None:  # fmt: skip
    """Give a session a task and follow it to its end.

    A line for each event goes to stderr, the final words (or with --json one object) to stdout. Ctrl-C stops the
    following, not the session.
    """
    asked = _asked(
        cwd, model, window, reserve, sandbox, network, approvals, tools, constraint, accept, max_model_calls,
        max_output_tokens, api_base, config,
    )  # fmt: skip
    session_id, words = _named(session), words_of(task, file, "task")
    config = _config(asked) if session is None else None

    async def work(client: Salience) -> SavedProjection | None:
        return await _begin(client, session_id, words, asked, message_id, config)

    _follow(session_id, work, json_)


def say(
    session: SessionId, words: Words = None, file: File = None, model: Model = None, window: Window = None,
    message_id: MessageId = None, follow: Follow = False, json_: Json = False,
) -> None:  # fmt: skip
    """Say something to a session; one that has ended goes on.

    Returns when the input is acknowledged: it is then in the log, and in the next context that is built.
    """
    said = words_of(words, file, "words")

    async def work(client: Salience) -> SavedProjection | None:
        saved = await _stands(client, session)
        settings, context = await _settings(client, session, model), await _context(client, session, window)
        receipt = await client.say(
            session, said, message_id=message_id or "", model_settings=settings, context_config=context
        )
        if not follow:
            if json_:
                json_out({"session_id": session, **receipt.plain()})
            else:
                out(f"{receipt.accepted} as input {receipt.position} of {session}")
        return saved

    if follow:
        _follow(session, work, json_)
    else:
        connected(work)


def resume(
    session: SessionId, model: Model = None, window: Window = None, follow: Follow = False, json_: Json = False
) -> None:
    """Unpause a session, or start the next run of one that has ended."""

    async def work(client: Salience) -> SavedProjection | None:
        saved = await _stands(client, session)
        settings, context = await _settings(client, session, model), await _context(client, session, window)
        status = await client.resume(session, model_settings=settings, context_config=context)
        if not follow:
            if json_:
                json_out({"session_id": session, "status": status})
            else:
                out(f"{session}: {status}")
        return saved

    if follow:
        _follow(session, work, json_)
    else:
        connected(work)


# --- beginning -------------------------------------------------------------------------------------------------------


def _asked(
    cwd: Path | None, model: str | None, window: int | None, reserve: int | None, sandbox: str | None,
    network: bool | None, approvals: str | None, tools: str | None, constraint: list[str] | None,
    accept: list[str] | None, max_model_calls: int | None, max_output_tokens: int | None, api_base: str | None,
    config: Path | None,
) -> Asked:  # fmt: skip
    from salience.cli.configuration import Asked

    return Asked(
        cwd, model, window, reserve, sandbox, network, approvals, tools, tuple(constraint or ()), tuple(accept or ()),
        max_model_calls, max_output_tokens, api_base, config,
    )  # fmt: skip


def _named(session: str | None) -> str:
    from salience.client import check_session_id, new_session_id

    session_id = session if session is not None else new_session_id()
    check_session_id(session_id)
    return session_id


def _config(asked: Asked) -> SessionConfig:
    from salience.cli.configuration import configuration
    from salience.settings import Settings

    return configuration(asked, default_model=Settings().model)


async def _begin(
    client: Salience, session_id: str, words: str, asked: Asked, message_id: str | None, config: SessionConfig | None
) -> SavedProjection | None:
    """Start the session, or give the task to the one that is there; returns how it stood before.

    A session that may exist comes without `config`: one that does keeps its own and needs no model to be named.
    """
    if config is None and await client.exists(session_id):
        saved = await _stands(client, session_id)
        if any(value not in (None, ()) for value in asked):
            warn(f"{session_id} exists and keeps its configuration; to change its model: salience say --model")
        await client.give_task(session_id, words, message_id=message_id or "")
        return saved
    await client.start(config or _config(asked), words, session_id=session_id, message_id=message_id or "")
    return None


async def _stands(client: Salience, session_id: str) -> SavedProjection | None:
    from salience.errors import NotFound

    try:
        return await client.journal.latest(session_id)
    except NotFound:
        return None


async def _settings(client: Salience, session_id: str, model: str | None) -> ModelSettings | None:
    """The session's own model settings with another model in them."""
    if model is None:
        return None
    from pydantic import ValidationError

    from salience.cli.complaint import problems
    from salience.errors import NotFound, UsageError
    from salience.model.session import ModelSettings

    try:
        settings = (await client.session(session_id)).model_settings
    except NotFound:  # its first run ended before it had a model
        settings = ModelSettings(model=model_name(model))
    try:
        return type(settings).model_validate({**settings.model_dump(), "model": model_name(model)})
    except ValidationError as error:
        raise UsageError(f"invalid model: {problems(error)}") from None


async def _context(client: Salience, session_id: str, window: int | None) -> ContextConfig | None:
    """The session's own context configuration with another window in it."""
    if window is None:
        return None
    from pydantic import ValidationError

    from salience.cli.complaint import problems
    from salience.errors import UsageError

    config = (await client.session(session_id)).context_config
    try:
        return type(config).model_validate({**config.model_dump(), "context_window_tokens": window})
    except ValidationError as error:
        raise UsageError(f"invalid window: {problems(error)}") from None


# --- following -------------------------------------------------------------------------------------------------------


def _follow(session_id: str, begin: Any, json_: bool) -> None:
    """Begin, follow to the end, print the result; the exit code says how it ended."""

    async def work(client: Salience) -> Ending:
        from salience.cli.follow import Following

        saved = await begin(client)
        tell(f"following {session_id}; Ctrl-C stops the following, not the session")
        return await Following(client, session_id, saved).to_the_end()

    try:
        ending = connected(work)
    except KeyboardInterrupt:
        warn(f"no longer following; the session goes on — salience show {session_id}")
        raise typer.Exit(INTERRUPTED) from None
    if json_:
        json_out(ending.model_dump(mode="json"))
    else:
        said = [ending.final_text] if ending.final_text else []
        for words in [*said, *(str(question) for question in ending.questions)]:
            out(clean(words))
    if ending.reason == "asked":
        tell(f"{session_id} waits for your answer — {how_to_answer(session_id)}")
        return
    if ending.reason in GOOD_ENDINGS:
        tell(f"{session_id} {ending.reason} after {counted(ending.turns, 'turn')} — salience show {session_id}")
        return
    raise failure(ending)


def how_to_answer(session_id: str) -> str:
    """The command that answers a question of a session."""
    return f'salience say {session_id} "…" --follow'


def failure(ending: Ending) -> SalienceError:
    """The error that a bad ending is: exit 5 where a backend refused or timed out, else 1 (design §8)."""
    detail = f": {one_line(ending.detail, 400)}" if ending.detail else ""
    error = SessionFailed(
        f"{ending.session_id} ended with {ending.reason}{detail}",
        mend=_MENDING.get(ending.reason, "salience resume {id}").format(id=ending.session_id),
    )
    if ending.reason in ("model_unavailable", "backend_unavailable"):
        error.exit_code = UNAVAILABLE
    return error


_MENDING = {
    "step_limit": "salience say {id} 'go on' starts the next run",
    "context_unfit": "salience resume {id} --window TOKENS, or give the large part as a file",
    "model_recovery_failed": "salience resume {id} --model provider/model --window TOKENS, with a larger window",
    "context_overflow": "start with a smaller --window, as large as the model's own",
    "model_auth": "give the worker's environment the provider's key, restart it, then salience resume {id}",
    "model_rate_limited": "wait, then salience resume {id}",
    "model_unavailable": "check the provider and --api-base, then salience resume {id}",
    "model_bad_request": "salience say {id} 'go on' --model provider/model",
    "workspace_gone": "put the folder back, then salience resume {id}",
    "backend_unavailable": "salience doctor, then salience resume {id}",
    "internal_error": "salience show {id} and the worker's log",
}
