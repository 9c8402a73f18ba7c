"""What the events of an Anthropic reply become."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ProviderNonsense, ProviderSilent
from core.provider.anthropic_format import ERROR_STATUSES, MessageReader
from core.provider.backoff import RetryPolicy
from core.provider.failures import ServerRejected
from core.provider.provider import Delta, Finish, Reasoning, Text, ToolCall, Usage
from core.provider.sse_decoder import SseDecoder
from core.surrogates import whole_text
from tests.support.anthropic_kit import END, STOP, called, delta, event, opened, said, start, stopped

POLICY = RetryPolicy()


def read(*events: bytes, reader: MessageReader | None = None) -> list[Delta]:
    """The deltas of a complete stream."""
    reader = reader or MessageReader()
    decoder = SseDecoder()
    payloads = [payload for part in events for payload in decoder.feed(part)]
    return [each for payload in payloads for each in reader.take(payload)] + list(reader.end())


def read_whole(**message: Any) -> list[Delta]:
    reader = MessageReader()
    deltas = list(reader.take(json.dumps({"type": "message", "role": "assistant", **message})))
    assert reader.has_ended
    return deltas + list(reader.end())


def test_text_usage_and_finish() -> None:
    assert read(start(), said("hel"), delta("text_delta", text="lo"), STOP) == [
        Usage(7, None),
        Text("hel"),
        Text("lo"),
        Usage(7, 3),
        Finish("end_turn"),
    ]


def test_thinking_is_reasoning_and_its_signature_is_passed_over() -> None:
    thinking = opened("thinking", thinking="", signature="") + delta("thinking_delta", thinking="hm")
    signed = delta("signature_delta", signature="abc")

    assert read(thinking, signed, said("so", 1), STOP)[:2] == [Reasoning("hm"), Text("so")]


def test_pings_and_what_nobody_knows_are_passed_over() -> None:
    odd = [
        event("ping"),
        event("news", index=0),
        opened("redacted_thinking", data="x"),
        opened("server_tool_use", 1, id="s", name="web_search", input={}),
        delta("citations_delta", citation={}),
        delta("news_delta", text="no"),
        event("content_block_stop", index=9),
    ]

    assert read(*odd, said("ok"), STOP)[0] == Text("ok")


def test_tool_calls_are_put_together_and_come_before_the_finish() -> None:
    assert read(
        said("let me"),
        called("a", "one", "", '{"y":', "2}", index=1),
        called("b", "two", index=2),
        stopped("tool_use"),
        END,
    ) == [
        Text("let me"),
        Usage(None, 3),
        ToolCall("a", "one", '{"y":2}'),
        ToolCall("b", "two", "{}"),
        Finish("tool_use"),
    ]


def test_an_input_that_comes_whole_with_the_start_of_its_block_is_taken_unless_pieces_follow() -> None:
    whole = opened("tool_use", id="a", name="f", input={"x": 1})

    assert read(whole, stopped("tool_use"))[1] == ToolCall("a", "f", '{"x": 1}')
    pieces = delta("input_json_delta", partial_json='{"x":2}')
    assert read(whole, pieces, stopped("tool_use"))[1] == ToolCall("a", "f", '{"x":2}')


def test_interleaved_blocks_are_told_apart_by_index() -> None:
    assert [
        each
        for each in read(
            opened("tool_use", 0, id="a", name="f", input={}),
            opened("tool_use", 1, id="b", name="g", input={}),
            delta("input_json_delta", 1, partial_json='{"b":1}'),
            delta("input_json_delta", 0, partial_json='{"a":1}'),
            stopped("tool_use"),
        )
        if isinstance(each, ToolCall)
    ] == [ToolCall("a", "f", '{"a":1}'), ToolCall("b", "g", '{"b":1}')]


def test_missing_and_repeated_ids_are_replaced() -> None:
    found = read(called("a", "f"), called("a", "g", index=1), called("", "h", index=2), stopped("tool_use"))

    calls = [each for each in found if isinstance(each, ToolCall)]
    assert [call.name for call in calls] == ["f", "g", "h"]
    assert calls[0].id == "a"
    assert len({call.id for call in calls}) == 3


def test_a_tool_is_called_by_its_own_name() -> None:
    reader = MessageReader({"files_read": "files.read"}.get)  # type: ignore[arg-type]

    assert read(called("a", "files_read"), stopped("tool_use"), reader=reader)[1] == ToolCall("a", "files.read", "{}")


def test_cached_input_counts_as_input_and_later_counts_are_totals() -> None:
    first = start(input_tokens=5, cache_creation_input_tokens=10, cache_read_input_tokens=100, output_tokens=1)

    deltas = read(first, said("x"), stopped(None, output_tokens=2), stopped(output_tokens=4, input_tokens=6), END)

    assert [each for each in deltas if isinstance(each, Usage)] == [Usage(115, None), Usage(115, 2), Usage(116, 4)]


@pytest.mark.parametrize("usage", [None, 5, {}, {"input_tokens": None}, {"input_tokens": True}, {"input_tokens": -1}])
def test_a_usage_that_says_nothing_is_unknown_and_not_zero(usage: Any) -> None:
    begun = event("message_start", message={"usage": usage})
    ended = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)

    assert read(begun, said("x"), ended) == [Text("x"), Finish("end_turn")]


def test_a_stop_reason_or_the_last_event_is_an_end() -> None:
    assert read(said("x"), stopped("max_tokens"))[-1] == Finish("max_tokens")
    assert read(said("x"), END)[-1] == Finish("end_turn")
    assert read(called("a", "f"), END)[-1] == Finish("tool_use")


@pytest.mark.parametrize("reason", [None, "refusal", "end_turn"])
def test_nothing_said_is_no_answer_and_the_reason_is_named(reason: str | None) -> None:
    with pytest.raises(ProviderNonsense, match=f"answered nothing.*{reason or 'none'}") as caught:
        read(start(), opened("thinking", thinking="hm"), stopped(reason), END)
    assert isinstance(caught.value, ProviderSilent) is (reason != "refusal")


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use", "news"])
@pytest.mark.parametrize("has_indexes", [True, False])
def test_the_input_of_a_block_that_is_no_call_of_ours_is_passed_over(kind: str, has_indexes: bool) -> None:
    first, second = (0, 1) if has_indexes else (None, None)
    foreign = opened(kind, first, id="s", name="web_search", input={})  # type: ignore[arg-type]
    piece = delta("input_json_delta", first, partial_json='{"query": "x"}')  # type: ignore[arg-type]
    ours = called("a", "f", '{"y": ', "1}", index=second)  # type: ignore[arg-type]

    assert read(foreign, piece, said("found", 2), STOP) == [Text("found"), Usage(None, 3), Finish("end_turn")]
    assert [each for each in read(foreign, piece, ours, STOP) if isinstance(each, ToolCall)] == [
        ToolCall("a", "f", '{"y": 1}')
    ]
    assert [each for each in read(ours, foreign, piece, STOP) if isinstance(each, ToolCall)] == [
        ToolCall("a", "f", '{"y": 1}')
    ]


def test_the_input_of_a_block_that_never_began_is_refused() -> None:
    with pytest.raises(ProviderNonsense, match="without a name"):
        read(delta("input_json_delta", 3, partial_json="{}"), STOP)


def test_a_nul_becomes_a_replacement_character_wherever_the_model_puts_it() -> None:
    thought = opened("thinking", thinking="h\0m")

    assert read(thought, said("a\0b", 1), called("c\0", "f\0", '{"x": "\0"}', index=2), STOP) == [
        Reasoning("h\ufffdm"),
        Text("a\ufffdb"),
        Usage(None, 3),
        ToolCall("c\ufffd", "f\ufffd", '{"x": "\ufffd"}'),
        Finish("end_turn"),
    ]


def test_a_reply_without_an_end_is_no_reply() -> None:
    with pytest.raises(ProviderNonsense, match="end mark"):
        read(start(), said("x"), stopped(None))


def test_a_whole_message_is_read_like_a_stream() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "g", "input": {}},
    ]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 3}

    assert read_whole(content=blocks, stop_reason="tool_use", usage=usage) == [
        Reasoning("hm"),
        Text("hi"),
        Usage(3, 3),
        ToolCall("a", "f", '{"x": 1}'),
        ToolCall("b", "g", "{}"),
        Finish("tool_use"),
    ]
    assert read_whole(content=[{"type": "text", "text": "x"}]) == [Text("x"), Finish("end_turn")]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[DONE]", "not JSON"),
        ("[]", "not an object"),
        ("{}", "without a type"),
        ('{"type": 5}', "without a type"),
        ('{"choices": []}', "without a type"),
        ('{"type": "message_start", "message": 5}', "not an object"),
        ('{"type": "content_block_start", "index": 0}', "not an object"),
        ('{"type": "content_block_delta", "index": 0, "delta": 5}', "not an object"),
        ('{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}', "not a string"),
        ('{"type": "message_delta", "delta": [1]}', "not an object"),
        ('{"type": "message", "content": "x"}', "not a list"),
        ('{"type": "message", "content": ["x"]}', "not an object"),
        ('{"type": "message", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": [1]}]}', "an object"),
        ('{"type": "message", "content": [{"type": "tool_use", "id": "a", "input": {}}]}', "without a name"),
    ],
)
def test_what_is_not_of_the_form_is_refused(payload: str, words: str) -> None:
    reader = MessageReader()

    with pytest.raises(ProviderNonsense, match=words):
        [*reader.take(payload), *reader.end()]


@pytest.mark.parametrize("index", [None, "0", [0], {}, 1.5])
def test_an_odd_index_breaks_nothing(index: Any) -> None:
    begun = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 2}}
    block = event("content_block_start", index=index, content_block=begun)
    piece = event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": '{"x":1}'})

    assert read(block, piece, stopped("tool_use"))[1] == ToolCall("a", "f", '{"x":1}')


def failure(*events: bytes) -> ServerRejected:
    with pytest.raises(ServerRejected) as caught:
        read(*events)
    return caught.value


@pytest.mark.parametrize(("kind", "status"), ERROR_STATUSES.items())
def test_an_error_event_has_the_status_of_its_type(kind: str, status: int) -> None:
    error = failure(start(), event("error", error={"type": kind, "message": "so it is"}))

    assert error.http_status == status
    assert "so it is" in error.detail
    assert POLICY.is_retryable(error) == (
        kind in {"rate_limit_error", "api_error", "timeout_error", "overloaded_error"}
    )


def test_an_error_event_after_text_is_not_worth_a_retry() -> None:
    overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    assert not POLICY.is_retryable(failure(start(), said("x"), overloaded))


@pytest.mark.parametrize("error", ["plain words", {"type": "new_error"}, {"type": ["x"]}, [1], {}, None])
def test_an_error_event_of_any_shape_is_an_error(error: Any) -> None:
    found = failure(start(), event("error", error=error))

    assert found.http_status == 502
    assert not POLICY.is_retryable(found)


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20), st.integers(1, 5))
def test_whatever_is_streamed_the_text_is_whole(text: str, size: int) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = range(0, len(units), 2 * size)
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in cuts]
    reader = MessageReader()
    payloads = [json.dumps({"type": "content_block_delta", "delta": {"type": "text_delta", "text": p}}) for p in pieces]
    ending = [json.dumps({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "."}})]

    deltas = [each for payload in payloads + ending for each in reader.take(payload)]

    joined = "".join(each.text for each in deltas if isinstance(each, Text))
    joined.encode()
    assert joined == whole_text(text) + "."
