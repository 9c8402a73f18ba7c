"""The app: routes, errors, authentication, and the runtime behind them."""

import threading
import time

from flask_openapi import Info, OpenAPI

from api.answers import Problem
from api.auth.jwt_middleware import protect_routes
from api.errors import register_error_handlers, validation_error_response
from api.v1.compaction import compaction_routes
from api.v1.events import event_routes
from api.v1.health import health_routes
from api.v1.inbox import inbox_routes
from api.v1.interrupts import interrupt_routes
from api.v1.page import page_routes
from api.v1.runs import run_routes
from api.v1.session import session_routes
from api.v1.sessions import portable_routes
from api.v1.tools import tool_routes
from core.base.Main import Main
from core.settings import Settings


class Runtime:
    """What the server process holds: the use cases, and how they go down."""

    def __init__(self, settings: Settings) -> None:
        self.main = Main(settings)
        self._shutdown: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin_shutdown(self) -> None:
        """Stop the turns as ``shutdown`` and end the streams; does not wait; may be repeated."""
        with self._lock:
            if self._shutdown is None:
                self._shutdown = threading.Thread(
                    target=self.main.begin_shutdown, name="shutdown", daemon=True
                )
                self._shutdown.start()

    def describe(self) -> str:
        """The tree of scopes: every run, turn, goal and call that is open now."""
        return self.main.engine.scope.dump()

    def close(self, timeout_s: float) -> None:
        """Wait until the turns are parked and everything is written, ``timeout_s`` seconds at most."""
        deadline = time.monotonic() + timeout_s
        self.begin_shutdown()
        assert self._shutdown is not None
        self._shutdown.join(timeout_s)
        self.main.close(max(0.5, deadline - time.monotonic()))


def create_app(settings: Settings) -> OpenAPI:
    """The WSGI app. Starts threads and settles what an earlier server left: call it once, after any fork."""
    app = OpenAPI(
        __name__,
        info=Info(
            title="PythonServer",
            version="0.1.0",
            description="Runs plans of LLM agents, and stops them truthfully.",
        ),
        security_schemes={"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        validation_error_model=Problem,
        # The framework declares this one where a route does not; every route does.
        validation_error_status=500,
        validation_error_callback=validation_error_response,
        doc_prefix="/docs",
        static_folder=None,
    )
    app.url_map.merge_slashes = False  # else /v1//runs is answered with a redirection, in HTML
    app.extensions["runtime"] = Runtime(settings)
    protect_routes(app, settings)
    register_error_handlers(app)
    for routes in (
        session_routes, run_routes, inbox_routes, interrupt_routes, event_routes, portable_routes, tool_routes,
        health_routes, compaction_routes,
    ):  # fmt: skip
        app.register_api(routes)
    app.register_blueprint(page_routes)
    app.add_url_rule("/openapi.json", "openapi_json", lambda: app.api_doc)
    return app
