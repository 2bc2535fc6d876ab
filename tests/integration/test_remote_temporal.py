"""A Temporal of one's own is reached by address, namespace, TLS and key; what stands in the way is one clear line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from salience.client import Salience
from salience.errors import BackendUnavailable, SalienceError, UsageError
from salience.local.doctor import examine
from salience.local.work import CHECKOUT
from salience.settings import Settings
from salience.wire import connect
from tests.conftest import Scripted, ended
from tests.tls_front import Front

NAME = "temporal.example.com"
KEY = "key-that-nobody-may-read"


def with_temporal(settings: Settings, **values: Any) -> Settings:
    """Settings with another way to Temporal, validated as if they had been read."""
    return Settings(home=settings.home, postgres_dsn=settings.postgres_dsn, blob_dir=settings.blob_dir, **values)


async def test_a_session_runs_through_tls_with_a_client_certificate_and_a_key(
    settings: Settings, tmp_path: Path, scripted: Scripted, session_id: str
) -> None:
    assert settings.temporal_address
    async with Front(settings.temporal_address, tmp_path, name=NAME, wants_client=True) as front:
        there = with_temporal(
            settings,
            temporal_address=front.address,
            temporal_tls_ca=front.ca,
            temporal_tls_cert=front.cert,
            temporal_tls_key=front.key,
            temporal_tls_server_name=NAME,
            temporal_api_key=f"{KEY}\n",
        )
        async with await Salience.connect(there) as salience:
            await salience.start(scripted([{"text": "Hello."}]), "hi", session_id=session_id)
            await ended(salience, session_id)
            assert (await salience.result(session_id)).final_preview == "Hello."
        assert {headers.get("authorization") for headers in front.headers} == {f"Bearer {KEY}"}
        checks = {check.name: check for check in await asyncio.to_thread(examine, there)}
        assert checks["temporal"].ok
        assert "TLS" in checks["temporal"].detail
        assert KEY not in "".join(check.model_dump_json() for check in checks.values())
    assert KEY not in repr(there) + str(there.shown()) + there.model_dump_json()


@pytest.mark.parametrize(
    ("given", "error", "meaning", "mend"),
    [
        ({"temporal_tls_ca": "other_ca"}, BackendUnavailable, "nobody who is trusted", "temporal_tls_ca"),
        ({"temporal_tls_ca": "ca"}, BackendUnavailable, "for another name", "temporal_tls_server_name"),
        (
            {"temporal_tls_ca": "ca", "temporal_tls_server_name": NAME},
            BackendUnavailable,
            "closed the connection",
            "client certificate",
        ),
        (
            {
                "temporal_tls_ca": "ca",
                "temporal_tls_server_name": NAME,
                "temporal_tls_cert": "stranger_cert",
                "temporal_tls_key": "stranger_key",
            },
            BackendUnavailable,
            "closed the connection",
            "signed by an authority",
        ),
        (
            {"temporal_tls_ca": "ca", "temporal_tls_cert": "key", "temporal_tls_key": "cert"},
            BackendUnavailable,
            "cannot be used",
            "PEM",
        ),
        ({}, BackendUnavailable, "closed the connection", "speaks TLS"),
        ({"temporal_tls_ca": "/nowhere.pem"}, UsageError, "cannot be read", "PEM"),
    ],
)
async def test_what_stands_in_the_way_is_said(
    settings: Settings, tmp_path: Path, given: dict[str, str], error: type[SalienceError], meaning: str, mend: str
) -> None:
    async with Front(settings.temporal_address, tmp_path, name=NAME, wants_client=True) as front:
        values = {name: getattr(front, value, value) for name, value in given.items()}
        with pytest.raises(error) as raised:
            await connect(with_temporal(settings, temporal_address=front.address, **values))
        assert meaning in raised.value.message
        assert mend in raised.value.mend
        assert "Custom {" not in raised.value.line()


async def test_tls_with_a_server_that_has_none_is_said(settings: Settings) -> None:
    with pytest.raises(BackendUnavailable, match="does not speak TLS"):
        await connect(with_temporal(settings, temporal_address=settings.temporal_address, temporal_tls=True))


async def test_a_key_is_never_sent_in_the_clear(settings: Settings) -> None:
    with pytest.raises(BackendUnavailable, match="does not speak TLS"):
        await connect(with_temporal(settings, temporal_address=settings.temporal_address, temporal_api_key=KEY))


@pytest.mark.parametrize("role", ["workflow", "tools"])
def test_a_worker_in_a_namespace_that_does_not_exist_ends_with_one_clear_line(settings: Settings, role: str) -> None:
    variables = {
        "SALIENCE_HOME": str(settings.home),
        "SALIENCE_TEMPORAL_ADDRESS": settings.temporal_address,
        "SALIENCE_TEMPORAL_NAMESPACE": "nobody",
    }
    argv = [sys.executable, "-m", "salience.worker", "--role", role]
    done = subprocess.run(
        argv, env={**os.environ, **variables}, cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 5, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("salience: Temporal does not take this worker")
    assert "nobody" in last


async def test_a_namespace_that_does_not_exist_is_found_by_the_doctor(settings: Settings) -> None:
    there = with_temporal(settings, temporal_address=settings.temporal_address, temporal_namespace="nobody")
    checks = {check.name: check for check in await asyncio.to_thread(examine, there)}
    assert not checks["temporal"].ok
    assert "nobody" in checks["temporal"].detail
    assert "namespace" in checks["temporal"].mend
