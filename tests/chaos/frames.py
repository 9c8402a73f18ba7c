"""Event streams byte for byte: what a reader saw before a kill has to be the same afterwards."""

from collections.abc import Generator

from tests.support.api_client import Api


def read_frames(api: Api, path: str, after: int = 0) -> Generator[tuple[int, bytes], None, None]:
    """The number and the ``data:`` of each event behind ``after``, as they come. Close the generator to hang up."""
    answer = api.request("GET", f"{path}/events", headers={"Last-Event-ID": str(after)}, stream=True)
    with answer:
        if answer.status_code != 200:
            raise AssertionError(f"{path}/events: {answer.status_code} {answer.text}")
        pending = b""
        while data := answer.raw.read1(65536, decode_content=True):
            *frames, pending = (pending + data).split(b"\n\n")
            for frame in frames:
                lines = dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
                if b"id" in lines:
                    yield int(lines[b"id"]), lines[b"data"]


def read_log(api: Api, path: str) -> dict[int, bytes]:
    """The whole log of a run that waits or is over."""
    last = api.get(path)["last_seq"]
    log: dict[int, bytes] = {}
    for seq, data in read_frames(api, path):
        log[seq] = data
        if seq >= last:
            break
    return log
