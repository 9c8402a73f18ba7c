"""What a request's body may hold."""

import pytest

from api.json_body import parse_object
from core.errors import InvalidRequest


@pytest.mark.parametrize(
    ("body", "what"),
    [(rb'{"text": "a\u0000b"}', "NUL"), (rb'{"text": "\ud83d"}', "half a character"), (rb'{"\udc00": 1}', "half")],
)
def test_text_that_no_store_can_keep_is_refused_and_its_field_named(body: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as refused:
        parse_object(body)
    (error,) = refused.value.extra["errors"]
    assert what in error["message"]


def test_whole_characters_written_as_escapes_are_taken() -> None:
    assert parse_object(rb'{"text": "\ud83d\ude00 \u0001"}') == {"text": "\U0001f600 \x01"}
