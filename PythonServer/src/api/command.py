"""The command: ``serve``, and ``token --sub NAME``, which signs a token."""

import argparse
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence

from api.auth.tokens import mint
from api.gunicorn_server import Server, bind
from api.kernel import hide_from_same_user
from api.stand_in import StandIn, start_stand_in
from core.data_dir import lock_data_dir
from core.errors import ConfigurationError
from core.logs import configure_logs
from core.settings import Settings, load_settings
from core.store.database import open_database
from core.tool.registry import Toolbox

log = logging.getLogger(__name__)

#: Exit code when the configuration is wrong.
MISCONFIGURED = 2
#: Who the token of the printed address is for.
DEVELOPER = "developer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code. Serving leaves by ``SystemExit``."""
    command = _parser().parse_args(arguments)
    try:
        settings = load_settings()
        configure_logs(settings.log_level)
        if command.name == "token":
            print(_token(settings, command))
        else:
            serve(settings)
    except ConfigurationError as error:
        print(f"pythonserver: {error}", file=sys.stderr)
        return MISCONFIGURED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def serve(settings: Settings) -> None:
    """Take what the server needs, then serve until a signal."""
    _raise_file_limit()
    hide_from_same_user()  # for the worker too, which is a fork
    with contextlib.ExitStack() as at_exit:
        # The worker is a fork and shares the lock: DATA_DIR is free again when both are gone.
        at_exit.callback(lock_data_dir(settings.data_dir).release)
        # Whatever is wrong with it is told here, in one line. The worker opens its own: connections do not survive a fork.
        open_database(settings.database_url, settings.data_dir).dispose()
        Toolbox(settings)
        if "shell" in settings.tools_allowed and os.geteuid() == 0:
            log.warning("the server runs as root, and so do the commands of agents: give it a user of its own")
        listener = at_exit.enter_context(bind(settings.host, settings.port))
        stand_in = None
        if settings.needs_stand_in:
            stand_in = start_stand_in(with_weights=settings.llm == "smollm2")
            at_exit.callback(stand_in.stop)
            settings = settings.model_copy(update={"llm_base_url": stand_in.url})
        line = welcome(settings, listener.getsockname()[1], stand_in)
        Server(listener, settings, lambda: print(line, flush=True)).run()


def welcome(settings: Settings, port: int, stand_in: StandIn | None) -> str:
    """The line that says where the page is; in development with a token in the fragment, unseen by logs."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    if settings.configured_key is None:
        address += f"#token={mint(settings, DEVELOPER)}"
    beside = f"  (stand-in model: {stand_in.url})" if stand_in else ""
    return f"Chat page: {address}{beside}"


def _token(settings: Settings, command: argparse.Namespace) -> str:
    return mint(
        settings,
        command.sub,
        tenant=command.tenant,
        session_id=command.session_id,
        scope=command.scope,
        hours=command.hours,
    )


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m api", description="Serve, or sign a token.")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND")
    commands.add_parser("serve", help="serve (the default)")
    token = commands.add_parser("token", help="print a user-session token")
    token.add_argument("--sub", required=True, help="whose token")
    token.add_argument("--tenant", help="of which tenant")
    token.add_argument("--session-id", help="for this session only")
    token.add_argument("--scope", help="space separated; default: runs:create runs:read")
    token.add_argument("--hours", type=float, default=12, help="how long it is valid")
    return parser
