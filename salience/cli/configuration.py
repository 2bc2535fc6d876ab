"""A session's configuration is a file with single options laid over it, checked before anything is sent."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from salience.cli.complaint import problems
from salience.cli.options import model_name
from salience.errors import NotFound, UsageError
from salience.model import text
from salience.model.session import SessionConfig


class Asked(NamedTuple):
    """What the command line says of a session; None and empty mean "not said"."""

    cwd: Path | None = None
    model: str | None = None
    window: int | None = None
    reserve: int | None = None
    sandbox: str | None = None
    network: bool | None = None
    approvals: str | None = None
    tools: str | None = None
    constraints: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    max_model_calls: int | None = None
    max_output_tokens: int | None = None
    api_base: str | None = None
    file: Path | None = None


def configuration(asked: Asked, *, default_model: str) -> SessionConfig:
    """The configuration of a new session.

    Args:
        asked: the options.
        default_model: the model of the settings, for when nothing else names one.

    Raises:
        UsageError: something in it does not fit, or no model is named.
        NotFound: the folder, the file or the script does not exist.
    """
    data = read(asked.file) if asked.file else {}
    _lay(data, "model_config", model=asked.model, max_output_tokens=asked.max_output_tokens, api_base=asked.api_base)
    _lay(data, "context_config", context_window_tokens=asked.window, reserved_output_tokens=asked.reserve)
    _lay(
        data,
        "permission_config",
        sandbox_mode=asked.sandbox,
        network=asked.network,
        approval_policy=asked.approvals,
    )
    _lay(data, "limits", max_model_calls=asked.max_model_calls)
    if asked.tools is not None:
        data["tools"] = [name.strip() for name in asked.tools.split(",") if name.strip()]
    for key, values in (("hard_constraints", asked.constraints), ("acceptance_criteria", asked.criteria)):
        if values:
            data[key] = [text.mend(value) for value in values]
    data["cwd"] = folder_of(asked.cwd or Path(str(data.get("cwd", "."))))
    settings = data.setdefault("model_config", {})
    if isinstance(settings, dict):
        name = settings.get("model") or default_model
        if not name:
            raise UsageError(
                "no model is named", mend="give --model provider/model (or script:FILE), or set SALIENCE_MODEL"
            )
        settings["model"] = model_name(str(name))
    try:
        config = SessionConfig.model_validate(data)
    except ValidationError as error:
        mend = "give a smaller --reserve" if "reserved_output_tokens" in str(error) else ""
        raise UsageError(f"invalid session configuration: {problems(error)}", mend=mend) from None
    if config.tools:
        from activities.tools.catalog import offered

        offered(config.tools)
    return config


def read(file: Path) -> dict[str, Any]:
    """A configuration file by its ending: .toml, .yaml or .yml, or JSON.

    Raises:
        NotFound: it cannot be read.
        UsageError: it is not what its ending says, or no table.
    """
    try:
        raw = text.decode(file.read_bytes())
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from error
    try:
        match file.suffix.lower():
            case ".toml":
                data = tomllib.loads(raw)
            case ".yaml" | ".yml":
                import yaml

                data = yaml.safe_load(raw)
            case _:
                data = json.loads(raw)
    except Exception as error:
        raise UsageError(f"{file} cannot be parsed: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file} holds no table of keys", mend="see `salience schema SessionConfig`")
    if "model_settings" in data:
        data["model_config"] = data.pop("model_settings")
    return data


def _lay(data: dict[str, Any], key: str, **values: Any) -> None:
    said = {name: value for name, value in values.items() if value is not None}
    if said:
        below = data.get(key)
        data[key] = {**below, **said} if isinstance(below, dict) else said


def folder_of(path: Path) -> str:
    """The absolute path of a folder that a session works in.

    Raises:
        NotFound: there is no such folder.
        UsageError: its name is not valid UTF-8.
    """
    # Not resolved: a workspace behind a link keeps the name its user knows it by.
    absolute = Path(os.path.abspath(path.expanduser()))
    if not absolute.is_dir():
        raise NotFound(f"the folder {text.mend(str(absolute))} does not exist", mend="make it, or give another --cwd")
    try:
        str(absolute).encode()
    except UnicodeEncodeError:
        raise UsageError("the folder's name is not valid UTF-8", mend="rename it, or give another --cwd") from None
    return str(absolute)
