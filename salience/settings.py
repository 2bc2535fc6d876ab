"""Where Salience runs and whom it talks to: `SALIENCE_*` variables over one TOML file over defaults.

Nothing here is read by the core or by workflow code; settings meet the edges and the activities only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource


def default_home() -> Path:
    """`$SALIENCE_HOME`, else the platform's user data folder (design §8)."""
    if named := os.environ.get("SALIENCE_HOME"):
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "salience"
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "salience"


class Settings(BaseSettings):
    """All settings of one process.

    A backend address that is empty means "the embedded one under `home`"; `salience.local` fills it in from the
    running stack. An unknown key in the TOML file is refused, because a typo there would otherwise be ignored for ever.
    """

    model_config = SettingsConfigDict(env_prefix="SALIENCE_", extra="forbid", frozen=True)

    home: Path = Field(default_factory=default_home, description="Folder of the embedded stack's state.")
    temporal_address: str = Field(
        default="", description="host:port of the Temporal frontend; empty: the embedded server."
    )
    temporal_namespace: str = Field(default="default", description="Temporal namespace.")
    postgres_dsn: str = Field(default="", description="libpq URI of the runtime role; empty: the embedded Postgres.")
    blob_dir: str = Field(default="", description="Folder of the file blob store; empty: `home`/blobs.")
    s3_endpoint: str = Field(default="", description="host:port of an S3 server for blobs; empty: the file store.")
    s3_bucket: str = Field(default="", description="Bucket of the blobs; made with the first one where it is missing.")
    s3_access_key: str = Field(default="", description="Id of the S3 key.")
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="The S3 key; never shown.")
    s3_region: str = Field(default="", description="Region of the bucket; empty: the server is asked.")
    s3_secure: bool = Field(default=True, description="Whether the S3 server is spoken to over TLS.")
    s3_prefix: str = Field(default="", description="What all keys in the bucket begin with.")
    task_queue: str = Field(
        default="salience", description="Task queue of sessions and their activities (spec LOOP-2c)."
    )
    tenant: str = Field(default="default", description="First part of every key in the store.")
    model: str = Field(default="", description="Default model as provider/model; `script:FILE` for the scripted one.")
    log_level: str = Field(default="INFO", description="Level of the worker's and supervisor's log files.")

    @field_validator("home")
    @classmethod
    def _expanded(cls, value: Path) -> Path:
        # Every process of a deployment must mean the same folder, whatever its own working directory is.
        return value.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        toml = TomlConfigSettingsSource(settings_cls, default_home() / "salience.toml")
        return init_settings, env_settings, toml

    @property
    def blobs(self) -> Path:
        """Folder of the file blob store."""
        return Path(self.blob_dir) if self.blob_dir else self.home / "blobs"
