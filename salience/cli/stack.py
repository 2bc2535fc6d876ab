"""`salience up`, `down` and `doctor`: results on stdout, progress on stderr, errors raised for the caller."""

from __future__ import annotations

import json
import time
from typing import Annotated, get_args

import typer
from rich.console import Console

from salience.errors import UsageError
from salience.local.detached import down as end
from salience.local.detached import up as start
from salience.local.foreground import hold
from salience.local.home import Home
from salience.local.info import RemotePart, StackInfo, running
from salience.settings import Settings, without_password

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay attached; Ctrl-C ends the stack.")] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Start the servers only.")] = False,
    json_out: Json = False,
) -> None:
    """Start the embedded stack under $SALIENCE_HOME: Temporal, Postgres and a worker.

    A server that the settings name elsewhere is not started; what is then left may be the worker alone.
    """
    settings = Settings()
    home, remote = settings.home, remote_parts(settings)
    if no_worker and len(remote) == len(get_args(RemotePart)):
        raise UsageError(
            "Temporal and Postgres are both named elsewhere, so without a worker there is nothing to start",
            mend="leave out --no-worker, or unset SALIENCE_TEMPORAL_ADDRESS or SALIENCE_POSTGRES_DSN",
        )
    progress = Console(stderr=True, highlight=False)
    began = time.monotonic()

    def tell(step: str, seconds: float) -> None:
        progress.print(f"  [green]✓[/] {step} [dim]{seconds:.1f} s[/]")

    if (found := running(home)) and found.state == "ready":
        _show(settings, found, json_out, "already running")
        if found.remote != remote and not json_out:
            typer.echo("  it was started with other settings: `salience down && salience up` takes these", err=True)
        return
    if foreground:
        from salience.local.supervisor import Supervisor

        def ready() -> None:
            if info := running(home):
                _show(settings, info, json_out, f"up after {time.monotonic() - began:.1f} s; Ctrl-C ends it")

        hold(Supervisor(Home(home), worker=not no_worker, mode="foreground", tell=tell, remote=remote), ready)
        return
    info = start(home, worker=not no_worker, tell=tell, remote=remote)
    _show(settings, info, json_out, f"up after {time.monotonic() - began:.1f} s")


def down(
    purge: Annotated[bool, typer.Option("--purge", help="Delete the data too, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    json_out: Json = False,
) -> None:
    """End the embedded stack; the data stay unless --purge is given."""
    home = Home(Settings().home)
    if purge and not yes:
        if json_out:
            raise UsageError("--purge --json cannot ask", mend="add --yes")
        typer.confirm(f"Delete every session, artifact and log under {home.root}?", abort=True, err=True)
    ended = end(home.root)
    gone: list[str] = []
    if purge:
        from salience.local.belongings import purge as delete

        gone = [str(path) for path in delete(home.root)]
    if json_out:
        typer.echo(json.dumps({"home": str(home.root), "ended": ended, "deleted": gone}))
        return
    typer.echo("down" if ended else "was not running")
    for path in gone:
        typer.echo(f"deleted {path}")


def doctor(json_out: Json = False) -> None:
    """Check the installation and the running stack; each problem comes with the command that mends it."""
    from salience.local.doctor import examine, exit_code

    checks = examine(Settings())
    code = exit_code(checks)
    if json_out:
        typer.echo(json.dumps({"ok": code == 0, "checks": [check.model_dump() for check in checks]}))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            sign = "·" if check.kind == "note" else "✓" if check.ok else "✗"
            typer.echo(f"{sign} {check.name:{width}}  {check.detail}{f' — {check.mend}' if check.mend else ''}")
    raise typer.Exit(code)


def remote_parts(settings: Settings) -> tuple[RemotePart, ...]:
    """The servers that settings name elsewhere."""
    named: dict[RemotePart, str] = {"temporal": settings.temporal_address, "postgres": settings.postgres_dsn}
    return tuple(part for part, where in named.items() if where)


def _show(settings: Settings, info: StackInfo, json_out: bool, summary: str) -> None:
    if json_out:
        typer.echo(info.without_passwords().model_dump_json())
        return
    typer.echo(f"{info.home}: {summary}")
    temporal = f"embedded  {info.temporal.address}" if info.temporal else f"remote    {settings.temporal_address}"
    postgres = (
        f"embedded  {info.socket_dir}" if info.postgres else f"remote    {without_password(settings.postgres_dsn)}"
    )
    typer.echo(f"  Temporal  {temporal}")
    typer.echo(f"  Postgres  {postgres}")
    typer.echo(f"  worker    {f'pid {info.worker.pid}' if info.worker else 'none'}")
