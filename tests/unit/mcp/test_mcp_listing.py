"""What MCP servers list, made fit for a model: names and schemas."""

import re
from typing import Any

import pytest

from core.tool.mcp.listing import DESCRIPTION_BYTES, LISTING_BYTES, REMOTE_NAME_LENGTH, Listing, Names, listed
from core.tool.mcp.schema import SCHEMA_BYTES

GOOD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"type": "string"}},
}


def test_a_name_that_fits_stays_and_is_given_again_for_the_same_tool() -> None:
    names = Names()
    assert names.give("files", "read_file") == "files__read_file"
    assert names.give("files", "read_file") == "files__read_file"


def test_every_name_is_fit_for_a_model_and_no_two_tools_share_one() -> None:
    names = Names()
    tools = [
        ("a", "b__c"), ("a__b", "c"), ("a", "b.c"), ("a", "b/c"), ("a.b", "c"), ("a", "größe"), ("a", ""),
        ("s" * 64, "t"), ("s" * 64, "u"), ("s", "t" * 200), ("s", "t" * 201),
    ]  # fmt: skip
    given = [names.give(*tool) for tool in tools]
    assert len(set(given)) == len(tools)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in given), given
    assert [names.give(*tool) for tool in tools] == given


def test_a_name_does_not_depend_on_what_was_listed_before_unless_it_is_taken() -> None:
    assert Names().give("s", "t" * 200) == Names().give("s", "t" * 200)


def test_a_good_schema_is_kept_and_a_long_description_shortened() -> None:
    found = listed("read", "x" * 100_000, GOOD)
    assert found.parameters == GOOD
    assert len(found.description.encode()) <= DESCRIPTION_BYTES
    assert listed("read", None, {"type": "object"}).parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "not that of an object"),
        ({"type": "string"}, "not that of an object"),
        ({"type": "object", "properties": {"a": {"type": 7}}}, "schema is wrong"),
        ({"type": "object", "properties": []}, "schema is wrong"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "'#/$defs/none'|/\\$defs/none"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}, "127.0.0.1"),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "etc/passwd"),
        ({"type": "object", "default": float("inf")}, "JSON compliant"),
        ({"type": "object", "default": float("nan")}, "JSON compliant"),
        ({"type": "object", "description": "half \ud83d"}, "half a character"),
        ({"type": "object", "enum": ["x" * SCHEMA_BYTES]}, "longer than"),
        (
            {"type": "object", "x": {"pattern": "a", "default": {"pattern": "(a+)+"}}, "$ref": "#/x/default"},
            "no schema",
        ),
        ({"type": "object", "properties": {"pattern": {}}, "$ref": "#/properties"}, "no schema"),
    ],
)
def test_a_schema_by_which_nothing_can_be_checked_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        listed("tool", None, schema)


def test_regular_expressions_are_taken_out_of_a_schema_and_properties_of_that_name_stay() -> None:
    slow = {"type": "string", "pattern": "^(a+)+$"}
    found = listed(
        "tool",
        None,
        {
            "type": "object",
            "properties": {"pattern": slow, "patternProperties": {"items": slow}, "b": {"$ref": "#/$defs/pattern"}},
            "patternProperties": {"^(a+)+$": {}},
            "additionalProperties": False,
            "$defs": {"pattern": slow},
            "propertyNames": {"pattern": "^(a+)+$"},
            "allOf": [slow, {"patternProperties": {"(a+)+": {}}, "unevaluatedProperties": False}],
            "unknown": slow,
            "not": {"required": ["c"]},
            "default": {"pattern": "stays"},
        },
    )
    string = {"type": "string"}
    assert found.parameters == {
        "type": "object",
        "properties": {"pattern": string, "patternProperties": {"items": string}, "b": {"$ref": "#/$defs/pattern"}},
        "$defs": {"pattern": string},
        "propertyNames": {},
        "allOf": [string, {}],
        "unknown": string,
        "not": {"required": ["c"]},
        "default": {"pattern": "stays"},
    }


@pytest.mark.parametrize("keyword", ["not", "if", "contains"])
def test_a_schema_never_allows_less_for_want_of_a_regular_expression(keyword: str) -> None:
    schema = {"type": "object", keyword: {"pattern": "a"}, "oneOf": [{"pattern": "a"}, {"pattern": "b"}]}
    assert listed("tool", None, schema).parameters == {"type": "object", "properties": {}}


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="its name"):
        listed("n" * (REMOTE_NAME_LENGTH + 1), None, GOOD)
    assert listed("n" * REMOTE_NAME_LENGTH, None, GOOD)


def test_a_list_is_taken_as_far_as_there_is_room_and_says_once_what_is_left_out() -> None:
    listing = Listing()
    listing.take("wrong", None, {"type": "object", "default": float("nan")})
    long = {"type": "object", "properties": {"a": {"const": "x" * (SCHEMA_BYTES - 1000)}}}
    for number in range(20):
        listing.take(f"tool{number}", "d", long)
    assert [tool.name for tool in listing.tools] == ["tool0", "tool1", "tool2", "tool3"]
    assert sum(tool.size for tool in listing.tools) <= LISTING_BYTES
    wrong, rest = listing.left_out
    assert "'wrong' is left out" in wrong
    assert "from 'tool4' on" in rest


def test_names_of_tools_that_are_gone_are_forgotten() -> None:
    names = Names()
    other = names.give("other", "tool")
    for number in range(100):
        kept = names.give("one", f"tool{number}")
        names.keep("one", [kept])
    assert len(names) == 2
    assert names.give("other", "tool") == other
