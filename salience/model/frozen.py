"""Every model is a frozen value that refuses fields it does not know (spec §1)."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Frozen(BaseModel):
    """Base of all values: frozen, unknown fields refused, aliases accepted beside field names."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=())

    def plain(self) -> dict[str, Any]:
        """The value as JSON data without fields that are None: a later optional field changes no old digest."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


type_of_sequence = BeforeValidator(_tuple)
Names = Annotated[tuple[str, ...], type_of_sequence]
"""An immutable list of strings; JSON gives and takes an array."""
