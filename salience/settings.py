"""Where Salience runs and whom it talks to: `SALIENCE_*` variables over one TOML file over defaults.

Nothing here is read by the core or by workflow code; settings meet the edges and the activities only. What is wrong in them
is said when they are read, in one line and without the value: it may be a secret.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from salience.errors import UsageError

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_URI = re.compile(r"(?P<scheme>postgres(?:ql)?://)(?:(?P<role>[^:@/?#]*)(?::[^/?#]*)?@)?(?P<where>[^?#]*)")
_UNESCAPED = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|\s")


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

    model_config = SettingsConfigDict(env_prefix="SALIENCE_", extra="forbid", frozen=True, hide_input_in_errors=True)

    home: Path = Field(default_factory=default_home, description="Folder of the embedded stack's state.")
    temporal_address: str = Field(
        default="", description="host:port of the Temporal frontend; empty: the embedded server."
    )
    temporal_namespace: str = Field(default="default", min_length=1, description="Temporal namespace.")
    temporal_tls: bool = Field(
        default=False, description="Connect to Temporal with TLS; any other TLS setting and an API key imply it."
    )
    temporal_tls_ca: str = Field(default="", description="PEM file of who may sign the server's certificate.")
    temporal_tls_cert: str = Field(default="", description="PEM file of the client's certificate.")
    temporal_tls_key: str = Field(default="", description="PEM file of the client certificate's private key.")
    temporal_tls_server_name: str = Field(
        default="", description="Name in the server's certificate, where it is not the address's."
    )
    temporal_api_key: SecretStr = Field(default=SecretStr(""), description="API key sent to Temporal, over TLS only.")
    postgres_dsn: str = Field(
        default="", repr=False, description="libpq URI of the runtime role; empty: the embedded Postgres."
    )
    postgres_owner_dsn: SecretStr = Field(
        default=SecretStr(""),
        description="libpq URI of the role that owns the schema; a worker that has it brings the schema to its release.",
    )
    blob_dir: str = Field(default="", description="Folder of the file blob store; empty: `home`/blobs.")
    s3_endpoint: str = Field(default="", description="host:port of an S3 server for blobs; empty: the file store.")
    s3_bucket: str = Field(default="", description="Bucket of the blobs; made with the first one where it is missing.")
    s3_access_key: str = Field(default="", description="Id of the S3 key.")
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="The S3 key; never shown.")
    s3_region: str = Field(default="", description="Region of the bucket; empty: the server is asked.")
    s3_secure: bool = Field(default=True, description="Whether the S3 server is spoken to over TLS.")
    s3_prefix: str = Field(default="", description="What all keys in the bucket begin with.")
    task_queue: str = Field(
        default="salience",
        min_length=1,
        description="Task queue of sessions; their activities are on queues named from it (spec LOOP-2c).",
    )
    tenant: str = Field(default="default", description="First part of every key in the store.")
    model: str = Field(default="", description="Default model as provider/model; `script:FILE` for the scripted one.")
    log_level: LogLevel = Field(default="INFO", description="Level of the worker's log.")

    @field_validator("home")
    @classmethod
    def _expanded(cls, value: Path) -> Path:
        # Every process of a deployment must mean the same folder, whatever its own working directory is.
        return value.expanduser().absolute()

    @field_validator("temporal_address")
    @classmethod
    def _address(cls, value: str) -> str:
        found = _ADDRESS.fullmatch(value)
        if value and not (found and 0 < int(found[1]) < 65536):
            raise ValueError("must be host:port without a scheme, such as temporal.example.com:7233")
        return value

    @field_validator("temporal_tls_ca", "temporal_tls_cert", "temporal_tls_key")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not Path(value).expanduser().is_absolute():
            raise ValueError("must be the absolute path of a PEM file")
        return str(Path(value).expanduser()) if value else ""

    @field_validator("temporal_api_key")
    @classmethod
    def _header(cls, value: SecretStr) -> SecretStr:
        # A key read from a file often ends with a line break, which no header may hold.
        bare = value.get_secret_value().strip()
        if not (bare.isascii() and bare.isprintable()):
            raise ValueError("must be printable ASCII")
        return SecretStr(bare)

    @field_validator("postgres_dsn")
    @classmethod
    def _dsn(cls, value: str) -> str:
        return _uri(value)

    @field_validator("postgres_owner_dsn")
    @classmethod
    def _owner_dsn(cls, value: SecretStr) -> SecretStr:
        return SecretStr(_uri(value.get_secret_value()))

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if bool(self.temporal_tls_cert) != bool(self.temporal_tls_key):
            raise ValueError("temporal_tls_cert and temporal_tls_key belong together: set both or none")
        if self.postgres_owner_dsn.get_secret_value() and not self.postgres_dsn:
            raise ValueError("postgres_owner_dsn is for a Postgres of your own: set postgres_dsn too, or neither")
        return self

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
        return init_settings, env_settings, _file(settings_cls, default_home() / "salience.toml")

    @property
    def blobs(self) -> Path:
        """Folder of the file blob store."""
        return Path(self.blob_dir) if self.blob_dir else self.home / "blobs"

    @property
    def temporal_secured(self) -> bool:
        """Whether Temporal is spoken to with TLS: an API key never travels in the clear."""
        given = (self.temporal_tls_ca, self.temporal_tls_cert, self.temporal_tls_server_name)
        return self.temporal_tls or any(given) or bool(self.temporal_api_key.get_secret_value())

    def shown(self) -> dict[str, str]:
        """All settings as text that may be printed: passwords and keys are replaced by asterisks."""
        return {name: str(value) for name, value in self} | {"postgres_dsn": without_password(self.postgres_dsn)}


def without_password(dsn: str) -> str:
    """A libpq URI that may be printed: host, port, database and role, and nothing that its query adds."""
    found = _URI.match(dsn)
    if found is None:
        return ""
    role = f"{found['role']}@" if found["role"] else ""
    return f"{found['scheme']}{role}{found['where']}"


def _uri(value: str) -> str:
    # What libpq would take apart differently, it would name in its errors: a piece of a password, perhaps.
    found = _URI.match(value)
    authority = value[: found.end("where")].split("://", 1)[1].split("/", 1)[0] if found else ""
    sound = found and value.count("@") == authority.count("@") <= 1 and not _UNESCAPED.search(value)
    if value and not sound:
        raise ValueError("must be a URI such as postgresql://role:password@host:5432/database, special signs as %XX")
    return value


def _file(settings_cls: type[BaseSettings], path: Path) -> TomlConfigSettingsSource:
    """The file's values.

    Raises:
        UsageError: it cannot be read, is no TOML, or says where it lies itself.
    """
    try:
        source = TomlConfigSettingsSource(settings_cls, path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", mend="make it a file you may read"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: byte {error.start} cannot be read", mend="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}", mend="correct the file") from None
    named = source.toml_data.get("home")
    if named is not None and Path(str(named)).expanduser().resolve() != path.parent.resolve():
        # The worker of that home would look for its settings there and never see this file.
        raise UsageError(
            f"{path} names another home, where it would not be found", mend="remove the line and set SALIENCE_HOME"
        )
    return source
