"""One data converter for every client and worker: plain JSON that plain Temporal clients can read and write.

Values that equal their default are left out, because history is kept for ever and a turn writes it a few times. That makes
the defaults of the models in `salience.model.calls` part of the record's format: a default never changes, and a new field's
default means "as before". Golden histories hold this.
"""

from __future__ import annotations

import json
from typing import Any

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

from salience.errors import BackendUnavailable
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
        BackendUnavailable: the server does not answer.
    """
    try:
        return await Client.connect(
            settings.temporal_address,
            namespace=settings.temporal_namespace,
            data_converter=DATA_CONVERTER,
            runtime=_runtime(),
        )
    except RuntimeError as error:
        raise BackendUnavailable(
            f"Temporal at {settings.temporal_address} did not answer: {' '.join(str(error).split())[:200]}",
            mend="salience doctor",
        ) from error


_RUNTIME: list[Runtime] = []


def _runtime() -> Runtime:
    """One runtime a process, whose core reports errors only: a server that restarts is nothing to warn of line by line."""
    if not _RUNTIME:
        quiet = TelemetryFilter(core_level="ERROR", other_level="ERROR")
        _RUNTIME.append(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=quiet))))
    return _RUNTIME[0]
