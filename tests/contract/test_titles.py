"""A session's title: made once, in the turn, from what came to its end; never from a stopped one."""

from collections.abc import Iterator

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import goal, say_done, seen_at, start_plan
from tests.support.servers import ServerProcess


@pytest.fixture(scope="module")
def titling(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that gives titles."""
    with ServerProcess(tmp_path_factory.mktemp("titling"), models.url, AUTO_TITLE="on") as process:
        yield process


@pytest.fixture
def user(titling: ServerProcess, key: str) -> Iterator[Api]:
    """A user of it."""
    api = titling.api(key)
    yield api
    api.close()


def _title_calls(models: ModelServer, key: str) -> list[ServedCall]:
    """A title is asked for with the user's message inside another text, and with it the message's script line."""
    return [call for call in models.calls(key=key) if call.messages[0]["content"].startswith("Name the conversation")]


def _titled_as(api: Api, key: str, line: str) -> Run:
    """A run whose goal is done at once, and whose title is asked for with that line."""
    return start_plan(api, goal("only", say_done(f"{key}-goal")), text=line)


def test_a_completed_turn_gives_the_session_a_title(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(say_done(key))
    run.wait_parked()
    (end,) = of_type(run, "turn_completed")
    assert end["title"] == run.view()["title"] == "t1 t2"
    (call,) = _title_calls(models, key)
    assert say_done(key) in call.messages[1]["content"]  # what was asked, and what was said
    assert "t1 t2" in call.messages[1]["content"]
    assert call.tools == []
    said = run.transcript()
    assert len(said) == 2
    assert end["usage"]["calls"] == 2
    five_checks(run, models, key)


def test_a_stop_at_the_fifth_token_asks_for_no_title(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("trickle", tokens=4000, interval_ms=20, key=key))
    models.wait_tokens(5, key=key)
    run.cancel(wait_ms=30_000)
    assert run.view()["title"] is None
    assert "title" not in of_type(run, "turn_cancelled")[0]
    assert len(models.calls(key=key)) == 1
    assert _title_calls(models, key) == []
    five_checks(run, models, key)


def test_a_session_gets_one_title_only(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(say_done(key), session_id=key)
    run.wait_parked()
    for _ in range(2):
        after = run.view()["last_seq"]
        run.say(script("trickle", tokens=3, interval_ms=0, key=key))
        run.wait_event("turn_completed", after=after)
    five_checks(run, models, key)
    run.terminate()
    second = user.start(script("trickle", tokens=3, interval_ms=0, key=key), session_id=key)
    second.wait_parked()
    assert (run.view()["title"], second.view()["title"]) == ("t1 t2", "t1 t2")
    assert len(_title_calls(models, key)) == 1


def test_a_stop_while_the_title_is_being_made_ends_that_call(user: Api, models: ModelServer, key: str) -> None:
    run = _titled_as(user, key, script("silent", key=key))
    models.wait_calls(1, key=key)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    assert [item["kind"] for item in answer["receipt"] if item["kind"] != "goal"] == ["model_call"]
    (call,) = models.wait_open(0, key=key)
    assert call.close_reason == "cancelled"
    assert run.view()["title"] is None
    assert run.goals()["only"]["status"] == "COMPLETED"  # the work was done; the stop came for what follows it
    said = run.transcript()[-1]
    assert (said["content"], said.get("stopped")) == ("t1 t2 ", None)  # of the answer nothing was cut off
    assert len(of_type(run, "turn_cancelled")) == 1
    five_checks(run, models, key)


def test_a_title_that_cannot_be_made_fails_nothing_and_the_next_turn_tries_again(
    user: Api, models: ModelServer, key: str
) -> None:
    run = _titled_as(user, key, script("error", status=400, key=key))
    run.wait_parked()
    assert "title" not in of_type(run, "turn_completed")[0]
    assert run.view()["title"] is None
    run.say(say_done(f"{key}-second"))
    run.wait_event("turn_completed", title="t1 t2")
    assert run.view()["title"] == "t1 t2"
    five_checks(run, models, key)


def test_a_title_that_says_nothing_is_none(user: Api, models: ModelServer, key: str) -> None:
    run = _titled_as(user, key, script("nothing", key=key))
    run.wait_parked()
    assert of_type(run, "turn_completed") != []
    assert run.view()["title"] is None
    five_checks(run, models, key)


def test_a_failed_turn_asks_for_no_title(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("error", status=400, key=key))
    run.wait_event("turn_failed")
    run.wait_parked()
    assert _title_calls(models, key) == []
    assert run.view()["title"] is None
    five_checks(run, models, key)


def test_a_batch_run_gives_its_session_a_title(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(say_done(key), interactive=False)
    assert run.wait_parked() == "completed"
    assert run.view()["title"] == "t1 t2"
    assert len(_title_calls(models, key)) == 1
    five_checks(run, models, key)


def test_a_title_stays_when_its_turn_is_asked_again_or_the_server_is_killed(
    models: ModelServer, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("own"), models.url, AUTO_TITLE="on") as own:
        run = own.api().start(say_done(key))
        run.wait_parked()
        turn_id = go_back(run, "regenerate")["turn_id"]
        run.wait_event("turn_completed", turn_id=turn_id)
        assert len(_title_calls(models, key)) == 1
        own.kill()
        own.start()
        run = seen_at(own, run)
        assert run.view()["title"] == "t1 t2"
        five_checks(run, models, key)


def test_titles_are_off_by_default(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(say_done(key))
    run.wait_parked()
    assert len(models.calls(key=key)) == 1
    assert run.view()["title"] is None
    five_checks(run, models, key)
