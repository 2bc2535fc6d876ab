"""One data converter for every client and worker: plain JSON that plain Temporal clients can read and write.

Values that equal their default are left out, because history is kept for ever and a turn writes it a few times. That makes
the defaults of the models in `salience.model.calls` part of the record's format: a default never changes, and a new field's
default means "as before". Golden histories hold this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, TLSConfig

from salience.errors import BackendUnavailable, UsageError
from salience.settings import Settings


class CompactJSON(EncodingPayloadConverter):
    """`json/plain` with our models written without defaults and anything else as JSON."""

    def __init__(self) -> None:
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    @property
    def encoding(self) -> str:
        """The encoding every Temporal SDK reads as JSON."""
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        """Any JSON value or model as a payload."""
        if isinstance(value, BaseModel):
            data = value.model_dump_json(by_alias=True, exclude_defaults=True).encode()
        else:
            data = json.dumps(value, separators=(",", ":"), default=_plain).encode()
        return Payload(metadata={"encoding": b"json/plain"}, data=data)

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """The value of a payload, validated when a type is asked for."""
        if type_hint is None or type_hint is Any:
            return json.loads(payload.data)
        if isinstance(type_hint, type) and issubclass(type_hint, BaseModel):
            return type_hint.model_validate_json(payload.data)
        adapter = self._adapters.get(type_hint)
        if adapter is None:
            adapter = self._adapters[type_hint] = TypeAdapter(type_hint)
        return adapter.validate_json(payload.data)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


class CompactPayloads(CompositePayloadConverter):
    """The default converters with our JSON in place of theirs."""

    def __init__(self) -> None:
        super().__init__(
            *(
                CompactJSON() if isinstance(converter, JSONPlainPayloadConverter) else converter
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


DATA_CONVERTER = DataConverter(payload_converter_class=CompactPayloads)


async def connect(settings: Settings) -> Client:
    """A Temporal client of the resolved settings.

    Raises:
        UsageError: a certificate or key file cannot be read.
        BackendUnavailable: the server does not answer, or does not accept us.
    """
    tls = _tls(settings)
    key = settings.temporal_api_key.get_secret_value()
    try:
        return await Client.connect(
            settings.temporal_address,
            namespace=settings.temporal_namespace,
            data_converter=DATA_CONVERTER,
            runtime=_runtime(),
            tls=tls,
            api_key=key or None,
        )
    except (RuntimeError, ValueError, RPCError) as error:
        meaning, mend = _fault(" ".join(str(error).split()), settings)
        raise BackendUnavailable(
            f"Temporal at {settings.temporal_address} did not answer: {meaning}", mend=mend
        ) from error


def _tls(settings: Settings) -> TLSConfig | Literal[False]:
    if not settings.temporal_secured:
        return False
    return TLSConfig(
        server_root_ca_cert=_pem(settings.temporal_tls_ca, "temporal_tls_ca"),
        client_cert=_pem(settings.temporal_tls_cert, "temporal_tls_cert"),
        client_private_key=_pem(settings.temporal_tls_key, "temporal_tls_key"),
        domain=settings.temporal_tls_server_name or None,
    )


def _pem(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{setting}: {path} cannot be read: {error.strerror or error}", mend="name a PEM file this user may read"
        ) from None


_FAULTS = (
    ("UnknownIssuer", "nobody who is trusted signed its certificate", "temporal_tls_ca must be who signed it"),
    ("NotValidForName", "its certificate is for another name", "set temporal_tls_server_name to a name in it"),
    ("Expired", "its certificate has expired", "have it renewed"),
    ("InvalidContentType", "it does not speak TLS", "unset the temporal_tls_* settings, or name its TLS port"),
    ("ParseError", "the client's certificate or key cannot be used", "name PEM files that belong together"),
    ("CertificateRequired", "it wants a client certificate", "set temporal_tls_cert and temporal_tls_key"),
    ("Unauthenticated", "it does not know who we are", "set temporal_api_key, or a client certificate"),
    ("PermissionDenied", "it does not let us in", "check temporal_api_key and temporal_namespace"),
    ("ConnectionRefused", "nothing listens there", "check temporal_address, or start the server"),
    ("dns error", "the name is not known", "check temporal_address"),
)
"""What a part of the core's message means, in words, and what mends it."""


def _fault(said: str, settings: Settings) -> tuple[str, str]:
    """What a message of the core means, and what mends it."""
    for sign, meaning, mend in _FAULTS:
        if sign in said:
            return meaning, mend
    if "transport error" not in said:
        return said[:200], "salience doctor"
    # A server that wants TLS, or another certificate, says nothing and closes: only what we sent tells them apart.
    if not settings.temporal_secured:
        return "it closed the connection", "if it speaks TLS, set temporal_tls or temporal_tls_ca"
    if not settings.temporal_tls_cert:
        return (
            "it closed the connection",
            "if it wants a client certificate, set temporal_tls_cert and temporal_tls_key",
        )
    return "it closed the connection", "temporal_tls_cert must be signed by an authority that it trusts"


_RUNTIME: list[Runtime] = []


def _runtime() -> Runtime:
    """One runtime a process, whose core reports errors only: a server that restarts is nothing to warn of line by line."""
    if not _RUNTIME:
        quiet = TelemetryFilter(core_level="ERROR", other_level="ERROR")
        _RUNTIME.append(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=quiet))))
    return _RUNTIME[0]
