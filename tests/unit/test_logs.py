"""The logs: a JSON object a line, and neither variables nor messages in a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import core.logs

PROGRAM = """
import logging, structlog
from core.logs import configure_logs
configure_logs("warning")
logging.getLogger("plain").info("too quiet")
logging.getLogger("plain").warning("the %s of %d", "first", 2)
structlog.get_logger("rich").warning("second", run_id="r_1")
def fail(token):
    raise ValueError("third")
try:
    fail("s3" + "cret")
except ValueError:
    logging.getLogger("plain").exception("it failed")
try:
    import ast
    try:
        ast.literal_eval("whisp" + "ered (")
    except SyntaxError as error:
        error.add_note("not" + "ed")
        raise
except SyntaxError:
    logging.getLogger("plain").exception("it failed")
"""


def test_every_line_is_an_object_and_a_traceback_shows_no_variables() -> None:
    sources = Path(core.logs.__file__).absolute().parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    lines = [json.loads(line) for line in ended.stderr.splitlines()]

    assert [line["event"] for line in lines] == ["the first of 2", "second", "it failed", "it failed"]
    assert (lines[1]["run_id"], lines[1]["level"], lines[1]["logger"]) == ("r_1", "warning", "rich")
    assert lines[2]["exception"].endswith("\nValueError")
    assert "third" not in ended.stderr  # a message may quote what a user wrote
    assert "SyntaxError" in lines[3]["exception"]
    assert "whispered" not in ended.stderr and "noted" not in ended.stderr
    assert "s3cret" not in ended.stderr
    assert ended.stdout == ""
