"""What the model is told of a function, and how its arguments become values."""

import datetime
import enum
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from core.cancellation import Scope
from core.tool.function.schema import FunctionSchema, Injected, Progress, UnfitFunction
from core.tool.tool import ToolFailed


class Point(BaseModel):
    """A place."""

    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Pair:
    left: str
    right: str


def _schema(hint: Any, *default: Any) -> dict[str, Any]:
    """The schema of ``value``, the one parameter of a function with that hint."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = hint
    function.__defaults__ = default or None
    made = FunctionSchema(function).parameters
    assert made["additionalProperties"] is False
    assert made.get("required", []) == ([] if default else ["value"])
    Draft202012Validator.check_schema(made)
    found: dict[str, Any] = made["properties"]["value"]
    return found


@pytest.mark.parametrize(
    ("hint", "default", "schema"),
    [
        (str, (), {"type": "string"}),
        (int, (), {"type": "integer"}),
        (float, (), {"type": "number"}),
        (bool, (), {"type": "boolean"}),
        (Any, (), {}),
        (str, ("x",), {"type": "string", "default": "x"}),
        (int | None, (), {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | None, (None,), {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}),
        (int | str, (), {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], (), {"enum": ["a", "b"], "type": "string"}),
        (Literal["a", "b"], ("b",), {"enum": ["a", "b"], "type": "string", "default": "b"}),
        (list[int], (), {"type": "array", "items": {"type": "integer"}}),
        (list[int], ([1],), {"type": "array", "items": {"type": "integer"}, "default": [1]}),
        (set[str], (), {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (dict[str, int], (), {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Annotated[int, Field(ge=1, le=9)], (), {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[int, Field(ge=1)], (5,), {"type": "integer", "minimum": 1, "default": 5}),
        (Annotated[str, Field(description="said")], (), {"type": "string", "description": "said"}),
        (datetime.date, (), {"type": "string", "format": "date"}),
        (Path, (), {"type": "string", "format": "path"}),
        (Point, (), {"$ref": "#/$defs/Point"}),
        (list[Point], (), {"type": "array", "items": {"$ref": "#/$defs/Point"}}),
        (Colour, (), {"$ref": "#/$defs/Colour"}),
        (Pair, (), {"$ref": "#/$defs/Pair"}),
        (str, (object(),), {"type": "string"}),  # a default that JSON cannot say
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_type_hint_becomes_a_schema(hint: Any, default: tuple[Any, ...], schema: dict[str, Any]) -> None:
    assert _schema(hint, *default) == schema


def test_a_nested_model_is_described_in_the_same_schema() -> None:
    def function(where: Point, colours: list[Colour]) -> None: ...

    made = FunctionSchema(function).parameters
    assert made["$defs"]["Point"]["properties"]["y"] == {"type": "integer", "default": 0}
    assert made["$defs"]["Colour"]["enum"] == ["red", "blue"]
    validator = Draft202012Validator(made)
    assert validator.is_valid({"where": {"x": 1}, "colours": ["red"]})
    assert not validator.is_valid({"where": {"x": "one"}, "colours": ["red"]})
    assert not validator.is_valid({"where": {"x": 1}, "colours": ["green"]})
    assert not validator.is_valid({"where": {"x": 1}, "colours": [], "more": 1})


def _google(city: str, days: int = 1) -> None:
    """The weather of a city,
    in short.

    More that the model is not told.

    Args:
        city: its name,
            in English
        days (int): how many

    Returns:
        nothing
    """


def _numpy(city: str, days: int = 1) -> None:
    """The weather of a city,
    in short.

    Parameters
    ----------
    city : str
        its name,
        in English
    days : int, optional
        how many
    """


def _sphinx(city: str, days: int = 1) -> None:
    """
    The weather of a city,
    in short.

    :param city: its name,
        in English
    :param int days: how many
    :raises ToolFailed: never
    """


@pytest.mark.parametrize("function", [_google, _numpy, _sphinx])
def test_the_docstring_tells_what_the_tool_and_its_parameters_are(function: Any) -> None:
    made = FunctionSchema(function)
    assert made.description == "The weather of a city, in short."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name, in English"},
            "days": {"type": "integer", "default": 1, "description": "how many"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("text", "description"),
    [(None, ""), ("", ""), ("One line", "One line"), ("Odd: text\n-----\n:param", None), ("Args:\n\tx", None)],
)
def test_a_docstring_of_no_style_does_no_harm(text: str | None, description: str | None) -> None:
    def function(x: int) -> None: ...

    function.__doc__ = text
    made = FunctionSchema(function)
    assert made.parameters["properties"]["x"]["type"] == "integer"
    assert description is None or made.description == description


def test_the_description_in_a_hint_wins_over_the_docstring() -> None:
    def function(x: Annotated[int, Field(description="of the hint")], y: int) -> None:
        """Does it.

        Args:
            x: of the docstring
            y: of the docstring
        """

    properties = FunctionSchema(function).parameters["properties"]
    assert properties["x"]["description"] == "of the hint"
    assert properties["y"]["description"] == "of the docstring"


def test_names_that_pydantic_keeps_for_itself_are_names_like_others() -> None:
    def function(model_config: int, _hidden: str, schema: bool, p0: int, copy: int = 3, *, json: str = "") -> None: ...

    made = FunctionSchema(function)
    assert list(made.parameters["properties"]) == ["model_config", "_hidden", "schema", "p0", "copy", "json"]
    given = {"model_config": 1, "_hidden": "a", "schema": True, "p0": 4}
    assert made.read(given) == given


def test_what_the_server_gives_is_known_by_its_annotation_and_hidden_from_the_model() -> None:
    def function(
        a: int,
        stop: threading.Event,
        of_call: Scope,
        tell: Progress,
        maybe: threading.Event | None = None,
        marked: Annotated[Scope, "any"] | None = None,
    ) -> None: ...

    made = FunctionSchema(function)
    assert list(made.parameters["properties"]) == ["a"]
    assert made.injected == {
        "stop": Injected.EVENT, "of_call": Injected.SCOPE, "tell": Injected.PROGRESS,
        "maybe": Injected.EVENT, "marked": Injected.SCOPE,
    }  # fmt: skip
    with pytest.raises(ToolFailed, match="stop: Extra inputs are not permitted"):
        made.read({"a": 1, "stop": "now"})


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def function() -> None: ...

    made = FunctionSchema(function)
    assert made.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert made.read({}) == {}


# -- reading --------------------------------------------------------------------------------


def test_arguments_become_values_of_the_annotated_types() -> None:
    def function(
        day: datetime.date, where: Point, file: Path, colours: set[Colour], pair: Pair, ratio: float,
        many: tuple[int, ...], left: Annotated[int, Field(default=7)],
        inside: Annotated[int, Field(default_factory=lambda: 8)],
    ) -> None: ...  # fmt: skip

    values = FunctionSchema(function).read({
        "day": "2026-01-02", "where": {"x": 1}, "file": "a/b", "colours": ["red"],
        "pair": {"left": "l", "right": "r"}, "ratio": 1, "many": [1, 2],
    })  # fmt: skip
    assert values == {
        "day": datetime.date(2026, 1, 2), "where": Point(x=1), "file": Path("a/b"), "colours": {Colour.RED},
        "pair": Pair("l", "r"), "ratio": 1.0, "many": (1, 2), "left": 7, "inside": 8,
    }  # fmt: skip
    assert isinstance(values["ratio"], float)


def test_what_is_left_out_is_left_to_the_function() -> None:
    marker = object()

    def function(a: int, b: Any = marker) -> Any:
        return b

    assert FunctionSchema(function).read({"a": 1}) == {"a": 1}


def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    def function(day: datetime.date, where: Point) -> None: ...

    with pytest.raises(ToolFailed) as caught:
        FunctionSchema(function).read({"day": "tomorrow", "where": {"x": 1, "y": "up"}})
    assert caught.value.detail.startswith("the arguments do not fit the tool: day: Input should be a valid date")
    assert "; where/y: Input should be a valid integer" in caught.value.detail
    assert "pydantic" not in caught.value.detail


def test_a_crowd_of_faults_is_shortened() -> None:
    def function(days: list[datetime.date]) -> None: ...

    with pytest.raises(ToolFailed) as caught:
        FunctionSchema(function).read({"days": ["never" * 100] * 1000})
    assert len(caught.value.detail.encode()) < 1100


# -- what cannot be a tool ---------------------------------------------------------------------


def _no_hint(a) -> None: ...  # type: ignore[no-untyped-def]
def _many(*rest: int) -> None: ...
def _keywords(**rest: int) -> None: ...
def _by_place(a: int, /) -> None: ...
def _unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821
def _no_json(a: threading.Thread) -> None: ...
def _inside(a: list[threading.Event]) -> None: ...
def _bad_bound(a: Annotated[int, Field(pattern="(")]) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_no_hint, "its parameter 'a' has no type hint"),
        (_many, "its parameter 'rest' has no one name"),
        (_keywords, "its parameter 'rest' has no one name"),
        (_by_place, "its parameter 'a' has no one name"),
        (_unknown, "a type hint cannot be read: name 'Nowhere' is not defined"),
        (_no_json, "a type hint has no JSON form: .*Thread"),
        (_inside, "a type hint has no JSON form: .*Event"),
        (_bad_bound, "a type hint has no JSON form: "),
    ],
)
def test_a_function_that_cannot_be_described_is_refused_with_the_reason(function: Any, why: str) -> None:
    with pytest.raises(UnfitFunction, match=why) as caught:
        FunctionSchema(function)
    assert "\n" not in str(caught.value)
