"""The scripts of servers that answer nonsense, or cut what they say in an awkward place."""

import asyncio

from de2generator.errors import BadRequestError
from de2generator.scene import Scene, for_ever

#: What ``split`` says: characters of one to four bytes, and one picture of several code points.
SPLIT_TEXT = "né 🙂 日本語 👩‍👩‍👧 ok"
_BLOCK = b"a" * 65_536


async def split(scene: Scene) -> None:
    """``offset=N pause_ms=20 every=0``: the raw bytes are cut so that a character falls in two.

    ``offset`` counts the bytes of :data:`SPLIT_TEXT` (negative, or past its end: the frame around it is
    cut); without it the cut is inside the first emoji. ``every=1`` sends byte by byte and then pauses
    only where ``offset`` says.
    """
    line = scene.line
    frame, ending = scene.reply.said(SPLIT_TEXT)
    text = frame.index(SPLIT_TEXT.encode())
    default = len(SPLIT_TEXT.partition("🙂")[0].encode()) + 2
    cut = min(max(text + line.number("offset", default), 0), len(frame))
    is_each = line.is_on("every")
    for start, part in ((0, frame[:cut]), (cut, frame[cut:])):
        if start:
            await asyncio.sleep(line.seconds("pause_ms", 20))
        step = 1 if is_each else max(len(part), 1)
        for at in range(0, len(part), step):
            is_last = start + at + step >= len(frame)
            await scene.reply.raw(part[at : at + step], tokens=int(is_last), ends_frame=is_last)
            await asyncio.sleep(0)
    if ending:
        await scene.reply.raw(ending)
    await scene.reply.end()


async def surrogates(scene: Scene) -> None:
    """An emoji whose two surrogates come in two deltas, each as a lone JSON escape."""
    for piece in ("before ", "\ud83d", "\ude42", " after"):
        await scene.reply.text(piece)
    await scene.reply.finish()


async def nul(scene: Scene) -> None:
    """A thought and an answer, each with a NUL character in it."""
    await scene.reply.reasoning("hm\0 ")
    await scene.reply.text("before \0 after")
    await scene.reply.finish()


async def html(scene: Scene) -> None:
    """``status=200``: a web page, as a proxy in between may send."""
    page = b"<!doctype html><html><body><h1>Welcome</h1></body></html>\n"
    await scene.reply.whole(scene.line.number("status", 200), page, {"Content-Type": "text/html"})


async def halfjson(scene: Scene) -> None:
    """JSON that stops in the middle; the body itself ends properly."""
    said, _ = scene.reply.said("ha#")
    half = said[: said.index(b"#")]
    if scene.chat.stream:
        await scene.reply.raw(half + b"\n\n")
        await scene.reply.end()
    else:
        await scene.reply.whole(200, half)


async def badutf8(scene: Scene) -> None:
    """Valid frames whose text holds bytes that are no UTF-8."""
    said, ending = scene.reply.said("bad # byte")
    await scene.reply.raw(said.replace(b"#", b"\xff\xfe\xc3") + ending, tokens=1)
    await scene.reply.end()


async def endless(scene: Scene) -> None:
    """``mb=64``: one line of that many MiB without a newline, and then silence."""
    await scene.reply.raw(b"data: ", ends_frame=False)
    for _ in range(scene.line.number("mb", 64) * 16):
        await scene.reply.raw(_BLOCK, ends_frame=False)
        await asyncio.sleep(0)
    await for_ever()


async def empty(scene: Scene) -> None:
    """200 and no body at all."""
    await scene.reply.open()
    await scene.reply.end()


async def nothing(scene: Scene) -> None:
    """A valid answer without any text."""
    await scene.reply.finish()


async def error(scene: Scene) -> None:
    """``status=500``: an error answer."""
    status = scene.line.number("status", 500)
    if not 200 <= status <= 599:
        raise BadRequestError(f"script option status={status} is no HTTP status")
    await scene.reply.error(status, "the model server failed")
