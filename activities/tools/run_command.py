"""`run_command` runs a command line in the session's sandbox; one that ran is a result, whatever its exit code."""

from __future__ import annotations

import asyncio

from activities.tools.arguments import schema
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.model.tool import ToolSpec
from salience.workspace.command import MAX_OUTPUT_BYTES, run
from salience.workspace.paths import locate
from salience.workspace.sandbox import SandboxUnavailable, confine

MAX_TIMEOUT_S = 86_400
MAX_COMMAND_BYTES = 120_000
"""Linux takes 128 KiB in one argument."""

SPEC = ToolSpec(
    name="run_command",
    description=(
        "Run a command line with bash in the workspace and get its output (standard error included) and exit code. "
        "Each call is a new shell; background processes end with it. Unless the session allows more, it may write only "
        "in the workspace and /tmp, and has no network."
    ),
    parameters=schema(
        {
            "command": {"type": "string", "minLength": 1, "description": "What bash -c gets."},
            "cwd": {"type": "string", "minLength": 1, "description": "Folder to run in. Default: the workspace."},
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": MAX_TIMEOUT_S,
                "description": "Seconds before it is ended. Default and most: the session's limit.",
            },
        },
        ("command",),
    ),
    tool_class="effect",
)


async def _run(site: Site, args: Arguments) -> Result:
    permissions = site.config.permission_config
    if len(args["command"].encode()) > MAX_COMMAND_BYTES:
        raise Refused(
            f"the command is longer than {MAX_COMMAND_BYTES} bytes; put it in a file with write_file and run that",
            kind="invalid_arguments",
        )
    folder = await asyncio.to_thread(_folder, site, args.get("cwd", "."))
    try:
        confinement = await asyncio.to_thread(
            confine, site.workspace, permissions.sandbox_mode, network=permissions.network, folder=folder
        )
    except SandboxUnavailable as error:
        raise Refused(f"the command was not run. {error.line()}", kind="unavailable") from error
    most = site.config.limits.tool_timeout_s
    timeout_s = min(args.get("timeout_s", most), most)
    try:
        ended = await run(
            args["command"], confinement, tag=site.tag, timeout_s=timeout_s, stop=site.stop, progress=site.progress
        )
    except OSError as error:
        raise Refused(f"the command could not be started: {error.strerror}", kind="unavailable") from error
    match ended.ending:
        case "exited":
            return Result(ended.output, trailer=f"[exit code {ended.exit_code}]\n", exit_code=ended.exit_code)
        case "timed_out":
            line = f"[ended after {timeout_s:g} s, its time limit; what it had done by then stays done]\n"
            return Result(ended.output, trailer=line, ok=False, kind="timed_out")
        case "output_limit":
            line = f"[ended: it wrote more than can be kept, {MAX_OUTPUT_BYTES} bytes; send long output to a file]\n"
            return Result(ended.output, trailer=line, ok=False, kind="error")
        case "stopped":
            line = "[ended before it was done; what it had done by then stays done]\n"
            return Result(ended.output, trailer=line, ok=False, kind="interrupted")


def _folder(site: Site, named: str) -> str:
    with locate(site.workspace, named) as spot:
        if not spot.is_folder:
            raise Refused(f"there is no folder {spot.path} to run in")
        return spot.path


TOOL = Tool(SPEC, _run)
