"""What MCP servers list, made fit for a model: names and schemas."""

import re
from typing import Any

import pytest

from core.tool.mcp.listing import DESCRIPTION_BYTES, Names, listed

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
    ],
)
def test_a_schema_by_which_nothing_can_be_checked_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        listed("tool", None, schema)
