"""The compose file says only what is true of the code: settings, roles, sources and secrets. Nothing here needs Docker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from salience.local.home import Home
from salience.queues import ROLES
from salience.settings import Settings
from tests.unit.test_docs import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
WORKERS = {name: each for name, each in SERVICES.items() if (each.get("command") or [""])[0] == "worker"}
NOT_SETTINGS = {"SALIENCE_OWNER_PASSWORD", "SALIENCE_RUNTIME_PASSWORD"}
"""Words of the compose file's own, for the script that makes the roles."""
services = pytest.mark.parametrize("name", SERVICES)


def environment(name: str) -> dict[str, str]:
    return SERVICES[name].get("environment") or {}


@services
def test_every_variable_is_a_setting(name: str) -> None:
    for variable in environment(name):
        if variable.startswith("SALIENCE_") and variable not in NOT_SETTINGS:
            assert variable.removeprefix("SALIENCE_").lower() in Settings.model_fields, variable


def test_there_is_a_worker_for_each_role_and_no_other() -> None:
    roles = {name: each["command"][2] for name, each in WORKERS.items()}
    assert all(each["command"][1] == "--role" for each in WORKERS.values())
    assert all(name == role for name, role in roles.items())
    assert set(roles.values()) == set(ROLES) - {"all"}


@services
def test_images_are_pinned(name: str) -> None:
    image, tag = SERVICES[name]["image"].rsplit(":", 1)
    assert image
    assert re.fullmatch(r"\d+\.\d+[\w.-]*", tag), SERVICES[name]["image"]


@services
def test_a_service_says_whether_it_is_healthy_or_why_not(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) != bool(service.get("x-no-healthcheck"))
    assert service["restart"]


@services
def test_no_secret_is_written_down(name: str) -> None:
    for variable, value in environment(name).items():
        if re.search(r"PASSWORD|PWD|SECRET|ACCESS_KEY|DSN", variable):
            assert re.search(r"\$\{\w+:\?", value), f"{variable} must come from .env and be required"
            assert not re.search(r"://[^:]+:[^$]", value)


def test_every_variable_of_the_env_file_is_used_and_the_other_way_round() -> None:
    used = set(re.findall(r"\$\{(\w+):", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    lines = (ROOT / "deploy" / ".env.example").read_text(encoding="utf-8").splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert set(given) == used
    assert not any(given.values()), "the example holds no secret"


def test_keys_and_the_way_out_are_of_the_model_role_only() -> None:
    assert [name for name, each in SERVICES.items() if "env_file" in each] == ["model"]
    assert [name for name, each in SERVICES.items() if "outside" in each["networks"]] == ["model"]
    assert COMPOSE["networks"]["backend"] == {"internal": True}
    assert not [name for name, each in SERVICES.items() if "ports" in each]


def test_the_owner_of_the_schema_is_known_to_the_context_role_only() -> None:
    assert [name for name in WORKERS if "SALIENCE_POSTGRES_OWNER_DSN" in environment(name)] == ["context"]
    assert not [key for key in environment("workflow") if not key.startswith("SALIENCE_TEMPORAL_")]


def test_volumes_and_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_the_image_is_made_of_what_is_here_by_who_wrote_the_lock() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} is left out by .dockerignore"
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")
    version = re.search(r'^name = "uv"\nversion = "(.+)"', lock, re.MULTILINE)
    assert version
    assert f"uv=={version[1]}" in DOCKERFILE
    assert "uv sync --frozen --no-dev" in DOCKERFILE
    assert re.findall(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE) == ["salience"]
    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_shell(script: Path) -> None:
    assert subprocess.run(["/bin/sh", "-n", script], check=False).returncode == 0


def test_the_health_check_knows_the_workers_ready_file(tmp_path: Path) -> None:
    def healthy(role: str) -> bool:
        command = ["/bin/sh", ROOT / "deploy" / "healthy.sh", role]
        variables = {**os.environ, "SALIENCE_HOME": str(tmp_path)}
        return subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 0

    for role in set(ROLES) - {"all"}:
        file = Home(tmp_path).ready_file(role)
        file.parent.mkdir(exist_ok=True)
        assert not healthy(role)
        file.write_text(str(os.getpid()))
        assert healthy(role)
        ended = subprocess.Popen(["/bin/true"])
        ended.wait()
        file.write_text(str(ended.pid))
        assert not healthy(role)
