"""From a function's type hints and docstring to what the model is told of it, and from its arguments to the values."""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Protocol, Union

import docstring_parser
from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from core.cancellation import Scope
from core.tool.output import shorten
from core.tool.tool import ToolFailed

#: Of what pydantic has against the arguments, the most that goes to the model, and of how many of them.
FAULT_BYTES: Final = 1000
MAX_FAULTS: Final = 5


class Progress(Protocol):
    """What a function takes to tell how far it is."""

    def __call__(self, text: str) -> None:
        """Show this to the user, now. Not for the model. Dropped once the call is over; never raises for that."""


class Injected(StrEnum):
    """What the server gives to a function; the model neither sees nor fills it."""

    EVENT = "event"
    SCOPE = "scope"
    PROGRESS = "progress"


#: Annotation -> what is given for it, whatever the parameter is called.
_INJECTED: Final[dict[Any, Injected]] = {
    threading.Event: Injected.EVENT, Scope: Injected.SCOPE, Progress: Injected.PROGRESS,
}  # fmt: skip


class UnfitFunction(Exception):
    """A function that cannot be a tool; the message says why."""


class FunctionSchema:
    """What the model is told of a function, and how its arguments become the values of the parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """``UnfitFunction`` if its parameters cannot be described."""
        #: The first paragraph of the docstring, as one line; may be empty.
        self.description, told = _docs_of(function)
        #: Parameter -> what the server gives for it.
        self.injected: dict[str, Injected] = {}
        self._names: dict[str, str] = {}
        self._with_default: set[str] = set()
        fields = self._fields(function, told)
        try:
            self._model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
            #: JSON Schema (draft 2020-12) of the arguments.
            self.parameters: dict[str, Any] = self._model.model_json_schema(schema_generator=_Plain)
        except Exception as error:  # pydantic has many, and all of them are about the hints
            raise UnfitFunction(f"a type hint has no JSON form: {_one_line(error)}") from error
        self.parameters.pop("title", None)

    def _fields(self, function: Callable[..., Any], told: dict[str, str]) -> dict[str, Any]:
        hints = _hints(function)
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UnfitFunction(f"its parameter {name!r} has no one name: no *args, **kwargs or /")
            if name not in hints:
                raise UnfitFunction(f"its parameter {name!r} has no type hint")
            injected = _injected(hints[name])
            if injected is not None:
                self.injected[name] = injected
                continue
            if parameter.default is not parameter.empty:
                self._with_default.add(name)
            # A name of our own: theirs may be one that pydantic keeps for itself, such as "model_config" or "_x".
            self._names[f"p{len(fields)}"] = name
            fields[f"p{len(fields)}"] = (hints[name], _field(name, hints[name], parameter.default, told.get(name)))
        return fields

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The values by parameter, coerced to their types; what was left out is left to the function's defaults.

        ``ToolFailed`` that says what is wrong with each.
        """
        try:
            values = self._model.model_validate(arguments)
        except ValidationError as error:
            raise ToolFailed(f"the arguments do not fit the tool: {_faults(error)}") from None
        given = values.model_fields_set
        return {
            name: getattr(values, field)
            for field, name in self._names.items()
            if field in given or name not in self._with_default
        }


def _docs_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and what is said of each parameter; in Google's, NumPy's or Sphinx' style."""
    text = inspect.getdoc(function) or ""
    try:
        docs = docstring_parser.parse(text)
    except docstring_parser.ParseError:  # of no style; it may still begin with a paragraph
        docs = docstring_parser.Docstring()
        docs.short_description = text
    told = {each.arg_name: " ".join(each.description.split()) for each in docs.params if each.description}
    return " ".join((docs.description or "").split("\n\n")[0].split()), told


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise UnfitFunction(f"a type hint cannot be read: {_one_line(error)}") from error


def _injected(hint: Any) -> Injected | None:
    """Also for ``Annotated[…]`` and for ``… | None``, so that the function may be called without it."""
    if typing.get_origin(hint) is Annotated:
        return _injected(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, UnionType):
        inner = [each for each in typing.get_args(hint) if each is not NoneType]
        return _injected(inner[0]) if len(inner) == 1 else None
    return _INJECTED.get(hint) if isinstance(hint, type) else None


def _field(name: str, hint: Any, default: Any, told: str | None) -> Any:
    """What the annotation says for itself (``Annotated[int, Field(ge=1)]``) stays; its description wins."""
    options: dict[str, Any] = {"alias": name}
    if told and FieldInfo.from_annotation(hint).description is None:
        options["description"] = told
    return Field(**options) if default is inspect.Parameter.empty else Field(default, **options)


class _Plain(GenerateJsonSchema):
    """Without the titles that only repeat the names, and silent about a default that JSON cannot say."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _faults(error: ValidationError) -> str:
    faults = []
    for each in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]:
        where = "/".join(str(part) for part in each["loc"])
        faults.append(f"{where}: {each['msg']}" if where else each["msg"])
    return shorten("; ".join(faults), FAULT_BYTES)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
