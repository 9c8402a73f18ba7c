"""The scripts of well-formed behaviour: slow, silent, busy, dropping, tool-calling, late and strict
servers.

A script is one coroutine that answers one call. The names and options are the ones of ``/script NAME
key=value``; times are in milliseconds. Options that every script knows: ``key=`` (groups calls in the
log), ``on=goal|plan|any`` (which kind of request the line is for), ``model=GLOB`` (which models) and
``cancel=deaf|refuse`` (see :class:`~de2generator.scene.CancelManner`).
"""

import asyncio

from de2generator import believable
from de2generator.errors import BadRequestError
from de2generator.scene import Pace, Scene, for_ever


async def trickle(scene: Scene) -> None:
    """``tokens=20 interval_ms=50 first_ms=0 reasoning=0 finish=stop``: the words ``t1 t2 …``, one at a
    time.

    ``reasoning=N`` thinks N tokens aloud first.
    """
    line = scene.line
    await asyncio.sleep(line.seconds("first_ms", 0))
    pace = Pace(line.seconds("interval_ms", 50))
    for number in range(1, line.number("reasoning", 0) + 1):
        await pace.wait()
        await scene.reply.reasoning(f"r{number} ")
    for number in range(1, line.number("tokens", 20) + 1):
        await pace.wait()
        await scene.reply.text(f"t{number} ")
    await scene.reply.finish(line.text("finish", "stop"))


async def silent(scene: Scene) -> None:
    """Accepts and never answers; ``headers=1`` sends the headers first."""
    if scene.line.is_on("headers"):
        await scene.reply.open()
    await for_ever()


async def prefill(scene: Scene) -> None:
    """``delay_ms=10000``: silence, then as ``trickle``; ``headers=1`` sends the headers before it."""
    if scene.line.is_on("headers"):
        await scene.reply.open()
    await asyncio.sleep(scene.line.seconds("delay_ms", 10_000))
    await trickle(scene)


async def nonstream(scene: Scene) -> None:
    """``delay_ms=5000 tokens=20``: one whole JSON reply, even where a stream was asked."""
    await asyncio.sleep(scene.line.seconds("delay_ms", 5_000))
    scene.reply = reply = scene.make_whole()
    for number in range(1, scene.line.number("tokens", 20) + 1):
        await reply.text(f"t{number} ")
    await reply.finish()


async def busy(scene: Scene) -> None:
    """``status=429 retry_after_s=1 times=N``: refuses N times (without ``times`` always), then
    ``trickle``.

    ``retry_after_s`` is written as it is given; ``retry_after_s=none`` leaves the header out. Counted by
    ``key=``, without one by the user message.
    """
    line = scene.line
    place = (line.name, line.text("key", scene.chat.asked))
    times = line.number("times", -1)
    if times >= 0 and scene.refusals[place] >= times:
        await trickle(scene)
        return
    scene.refusals[place] += 1
    wait = line.phrase("retry_after_s", "1")
    headers = {} if wait == "none" else {"Retry-After": wait}
    await scene.reply.error(line.number("status", 429), "too many requests, try again later", headers)


async def drop(scene: Scene) -> None:
    """``tokens=5 interval_ms=50 how=close|reset|end``: N tokens, then the connection is cut.

    ``close`` and ``reset`` break the body off; ``end`` ends it properly, but without finish reason and
    ``[DONE]``. ``status=502`` answers that status in place of the first token.
    """
    line = scene.line
    if line.text("status"):
        await scene.reply.error(line.number("status", 502), "bad gateway")
        return
    pace = Pace(line.seconds("interval_ms", 50))
    await scene.reply.open()
    for number in range(1, line.number("tokens", 5) + 1):
        await pace.wait()
        await scene.reply.text(f"t{number} ")
    if line.text("how") == "end":
        await scene.reply.end()
    else:
        scene.reply.cut(reset=line.text("how") == "reset")


async def toolcall(scene: Scene) -> None:
    """``name=shell arguments={} count=1 rounds=1 interval_ms=5``: calls tools, then answers.

    ``name`` and ``arguments`` may be repeated for several calls in one message; ``count=N`` repeats a
    single one. ``rounds=N`` calls again until N rounds have followed the user message. ``text=1`` says a
    few words first; ``whole=1`` calls in one whole JSON reply, even where a stream was asked. The answer
    after the results is ``trickle`` with the same options.
    """
    line = scene.line
    if _rounds_seen(scene) >= line.number("rounds", 1):
        await trickle(scene)
        return
    names = line.all("name") or ["shell"]
    arguments = line.all("arguments") or ["{}"]
    calls = [(name, arguments[min(i, len(arguments) - 1)]) for i, name in enumerate(names)]
    if len(calls) == 1:
        calls *= line.number("count", 1)
    if line.is_on("whole"):
        scene.reply = scene.make_whole()
    if line.is_on("text"):
        await scene.reply.text("I will use a tool. ")
    for index, (name, argument) in enumerate(calls):
        await scene.reply.tool_call(index, name, argument, line.seconds("interval_ms", 5))
    await scene.reply.finish("tool_calls")


async def deaf(scene: Scene) -> None:
    """As ``trickle``; ``/v1/cancel`` for it is never answered and changes nothing."""
    await trickle(scene)


async def refuse_cancel(scene: Scene) -> None:
    """As ``trickle``; ``/v1/cancel`` for it is answered with 500 and changes nothing."""
    await trickle(scene)


async def late(scene: Scene) -> None:
    """As ``trickle``, but ``/v1/cancel`` only seems to work: it answers ``cancelled`` and the call goes
    on.

    It goes on for ``after_ms=0``, writes one chunk more, ``too late``, and ends as ``end=499|finish|cut``
    says.
    """
    try:
        await trickle(scene)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not scene.is_cancelled or scene.reply.is_client_gone or task is None:
            raise
        task.uncancel()
        await _go_on(scene)


async def _go_on(scene: Scene) -> None:
    line = scene.line
    clock = asyncio.get_running_loop().time
    until = clock() + line.seconds("after_ms", 0)
    while (left := until - clock()) > 0:
        await asyncio.sleep(min(left, line.seconds("interval_ms", 50)))
        await scene.reply.text("still ")
    await scene.reply.text("too late")
    match line.text("end", "499"):
        case "499":
            raise asyncio.CancelledError
        case "finish":
            await scene.reply.finish()
        case "cut":
            scene.reply.cut()
        case other:
            raise BadRequestError(f"script option end={other} is none of 499, finish, cut")


async def strict(scene: Scene) -> None:
    """400 unless the messages are in an order that a strict provider accepts; else a short answer."""
    if fault := scene.find_fault():
        await scene.reply.error(400, fault)
    elif scene.chat.must_call:
        await believable.answer(scene)
    else:
        await scene.reply.text("All messages are in order.")
        await scene.reply.finish()


def _rounds_seen(scene: Scene) -> int:
    """Tool rounds after the last user message: assistant messages with tool calls."""
    rounds = 0
    for message in reversed(scene.chat.messages):
        if message.get("role") == "user":
            break
        rounds += bool(message.get("tool_calls"))
    return rounds
