"""Everything that can go wrong, split by whose fault it is.

Each class carries the stable ``code`` and the HTTP ``status`` of its RFC 9457 problem document, so that
the HTTP edge needs no table of its own. The message is public: it says what to do and holds no private text.
"""

from typing import Any


class ServerError(Exception):
    """Base of the errors that a caller may see."""

    code = "internal_error"
    status = 500
    title = "Internal error"

    def __init__(self, detail: str = "", **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        #: Further members of the problem document, such as ``errors`` or ``receipt``.
        self.extra = extra
        #: Further response headers, such as ``Retry-After``.
        self.headers: dict[str, str] = {}


# -- the caller's fault ------------------------------------------------------------------


class InvalidJson(ServerError):
    """The body is not JSON."""

    code, status, title = "invalid_json", 400, "The body is not valid JSON"


class InvalidRequest(ServerError):
    """The body or query has the wrong shape; ``errors`` names each field."""

    code, status, title = "invalid_request", 422, "The request has the wrong shape"


class Unauthenticated(ServerError):
    """No token, or one that does not verify."""

    code, status, title = "unauthenticated", 401, "A valid bearer token is needed"


class Forbidden(ServerError):
    """The token is valid and lacks the scope."""

    code, status, title = "insufficient_scope", 403, "The token lacks a scope"


class NotFound(ServerError):
    """Unknown, or somebody else's: the caller cannot tell which."""

    code, status, title = "not_found", 404, "There is no such thing"


class SessionIsBusy(ServerError):
    """The session has a live run already."""

    code, status, title = "session_is_busy", 409, "The session has a live run"


class RunIsOver(ServerError):
    """The run is completed, cancelled or failed."""

    code, status, title = "run_is_over", 409, "The run is over"


class TurnIsOver(ServerError):
    """``if_turn`` names a turn that is not the current one."""

    code, status, title = "turn_is_over", 409, "That turn is over"


class NotInteractive(ServerError):
    """A batch run has no turn to stop without ending the run."""

    code, status, title = "not_interactive", 409, "The run is not interactive"


class SessionExists(ServerError):
    """An import makes a session; it never mixes two."""

    code, status, title = "session_exists", 409, "There is a session with that id already"


class RunIsBusy(ServerError):
    """A turn of the run is open; this is for a parked run."""

    code, status, title = "run_is_busy", 409, "A turn of the run is open"


class TurnNotStopped(ServerError):
    """The newest turn is not one that was stopped or failed."""

    code, status, title = "turn_not_stopped", 409, "The newest turn was not stopped"


class MessageIsSettled(ServerError):
    """The message does not wait any more; ``state`` says what became of it."""

    code, status, title = "message_is_settled", 409, "The message does not wait any more"


class QuestionIsSettled(ServerError):
    """The question was answered, declined or withdrawn before; ``settled`` says which, ``cause`` by which stop."""

    code, status, title = "question_is_settled", 409, "The question is settled"


class QuestionIsExpired(ServerError):
    """Its time was over before the answer came."""

    code, status, title = "question_is_expired", 410, "The question has expired"


class IdempotencyConflict(ServerError):
    """The same Idempotency-Key came with another body."""

    code, status, title = "idempotency_key_reused", 422, "The Idempotency-Key was used with another body"


class RedirectLimit(ServerError):
    """The answer was cut off so often, one time after the other, that another redirect would lead nowhere."""

    code, status, title = "redirect_limit", 409, "The answer was redirected too often"


class QueueFull(ServerError):
    """Too many messages wait for this run."""

    code, status, title = "queue_full", 429, "Too many messages are waiting"


class TooManyStreams(ServerError):
    """Every place for an event stream is taken; the rest is kept for STOP."""

    code, status, title = "too_many_streams", 503, "Too many event streams are open"


# -- the server's or the disk's fault ----------------------------------------------------


class StoreError(ServerError):
    """The store did not take a write; nothing of it was kept."""

    code, status, title = "store_unavailable", 503, "The server could not record the request; try again"


class StopNotRecorded(ServerError):
    """The stop holds, but could not be written down; ``receipt`` says what it reached."""

    code, status, title = "stop_not_recorded", 500, "Stopped, but the stop could not be recorded"


class ShuttingDown(ServerError):
    """The server is going down and starts nothing new."""

    code, status, title = "shutting_down", 503, "The server is shutting down"


class TurnIsComingBack(ServerError):
    """The turn is being taken up from an earlier server; its goals cannot be told apart yet."""

    code, status, title = "turn_is_coming_back", 503, "The turn is being taken up again; try again in a moment"


# -- the model's or the gateway's fault (end a goal, never a request) ---------------------


class ProviderError(ServerError):
    """A model call failed; the message is fit for the user and names no secret."""

    code, status, title = "provider_error", 502, "The model could not be reached"


class ProviderUnreachable(ProviderError):
    """No connection, or it broke: the gateway is down or the address is wrong."""

    code = "provider_unreachable"


class ProviderRejected(ProviderError):
    """The model server answered with an error status that a retry does not mend."""

    code = "provider_rejected"

    def __init__(self, detail: str, http_status: int) -> None:
        super().__init__(detail)
        self.http_status = http_status


class ProviderNonsense(ProviderError):
    """The answer is not what the protocol says: HTML, half JSON, an endless line, bad UTF-8, nothing."""

    code = "provider_nonsense"


class ProviderSilent(ProviderNonsense):
    """The model came to the end of its answer, and had neither said anything nor called a tool."""


class InvalidPlan(ServerError):
    """A plan that cannot run: unknown dependency, cycle, duplicate id, too many or too deep."""

    code, status, title = "invalid_plan", 422, "The plan cannot run"


# -- whoever starts the server -----------------------------------------------------------


class ConfigurationError(Exception):
    """A setting is wrong; the message is the one line that the start prints."""
