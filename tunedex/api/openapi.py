"""The OpenAPI document, in the version that the installed Swagger UI reads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import FastAPI

from tunedex.api.schemas import BatchQuery, ErrorSchema

#: Swagger UI 4, which the bundle holds, refuses OpenAPI 3.1.
OPENAPI_VERSION = "3.0.3"


def version() -> str:
    """The version of Tunedex that is installed; "0" where it runs from a checkout that is not."""
    try:
        return installed_version("tunedex")
    except PackageNotFoundError:
        return "0"


class Documented(FastAPI):
    """A FastAPI app whose document says what every route does with an error, in OpenAPI 3.0."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_version = OPENAPI_VERSION
            document = super().openapi()
            document.pop("jsonSchemaDialect", None)
            document["info"].pop("summary", None)  # new in 3.1
            schemas = document["components"]["schemas"]
            for model in (ErrorSchema, BatchQuery):
                schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schemas[model.__name__].pop("$defs", {}))
            schemas["BatchRequest"]["properties"]["queries"]["items"] = {"$ref": "#/components/schemas/BatchQuery"}
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path in document["paths"].values():
                for operation in path.values():
                    _tell_errors(operation)
            self.openapi_schema = _older(document)
        return self.openapi_schema


def _tell_errors(operation: dict[str, Any]) -> None:
    """Every error of every operation is problem details."""
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "Problem details (RFC 9457).",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ErrorSchema"}}},
    }


def _older(value: Any) -> Any:
    """``value`` with what 3.1 spells differently spelled as 3.0 does: a type or null, and a constant."""
    if isinstance(value, list):
        return [_older(item) for item in value]
    if not isinstance(value, dict):
        return value
    older = {name: _older(item) for name, item in value.items()}
    if isinstance(older.get("const"), str):
        older["enum"] = [older.pop("const")]
    options = older.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        del older["anyOf"]
        older = {**older, **rest[0], "nullable": True} if len(rest) == 1 else {**older, "anyOf": rest, "nullable": True}
    return older
