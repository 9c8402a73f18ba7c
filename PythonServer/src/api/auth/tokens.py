"""User-session tokens (RFC 7519): checked here, and in development also signed here."""

import re
import time
from collections.abc import Mapping
from typing import Any

import jwt
from jwt.exceptions import InvalidSubjectError

from api.auth.caller import DEFAULT_SCOPES, DEFAULT_TENANT, SCOPES, Caller
from api.auth.key_server import KeyServer
from core.data_dir import development_secret
from core.errors import ConfigurationError, Unauthenticated
from core.settings import Settings
from core.trusted_key import TrustedKey, secret_key

#: Seconds by which the signer's clock may differ from ours.
LEEWAY_S = 30
REALM = "pythonserver"

_SESSION_ID = re.compile(r"[A-Za-z0-9_\-.:]{1,128}")
_UNFIT_FOR_A_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

#: What went wrong, in words that are safe to send; the first class that fits counts.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidSignatureError, "the signature does not match: make the token with the key of this server"),
    (jwt.InvalidAlgorithmError, "the token is signed with an algorithm that is not accepted here"),
    (jwt.InvalidIssuerError, "the token has the wrong issuer"),
    (jwt.InvalidAudienceError, "the token is for another audience"),
    (InvalidSubjectError, "the claim sub must be a non-empty string"),
)


def unauthenticated(reason: str) -> Unauthenticated:
    """A 401 with the challenge of RFC 6750; ``reason`` is one of our own sentences."""
    error = Unauthenticated(f"{reason[0].upper()}{reason[1:]}.")
    error.headers["WWW-Authenticate"] = f'Bearer realm="{REALM}", error="invalid_token", error_description="{reason}"'
    return error


def session_key(settings: Settings) -> TrustedKey:
    """The configured key, or the development secret, which is made at its first use."""
    if settings.configured_key is not None:
        return settings.configured_key
    return secret_key(development_secret(settings.data_dir), settings.auth_jwt_algorithms)


class TokenVerifier:
    """Turns a token into a :class:`Caller`. What it accepts is fixed by the settings, never by the token."""

    def __init__(self, settings: Settings) -> None:
        self._key = session_key(settings)
        self._issuer = settings.auth_issuer
        self._audience = settings.auth_audience
        self._key_server = KeyServer(self._key.value) if self._key.kind == "jwks" else None

    def verify(self, token: str) -> Caller:
        """The caller, or ``Unauthenticated`` with the reason; ``KeyServerUnreachable`` if nobody can tell."""
        try:
            return caller_of(self._claims(token))
        except jwt.MissingRequiredClaimError as error:
            # Only names of claims that we require ourselves get here.
            raise unauthenticated(f"the claim {error.claim} is missing") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            for kind, reason in _REASONS:
                if isinstance(error, kind):
                    raise unauthenticated(reason) from None
            raise unauthenticated("the token is malformed") from None

    def _claims(self, token: str) -> dict[str, Any]:
        return jwt.decode(
            token,
            key=self._key.value if self._key_server is None else self._published_key(self._key_server, token),
            algorithms=list(self._key.algorithms),
            options={"require": ["exp", "sub"], "verify_aud": self._audience is not None},
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_S,
        )

    @staticmethod
    def _published_key(server: KeyServer, token: str) -> jwt.PyJWK:
        key_id = jwt.get_unverified_header(token).get("kid")
        key = server.key(key_id) if isinstance(key_id, str) else None
        if key is None:
            raise unauthenticated("the token is signed with an unknown key")
        return key


def caller_of(claims: Mapping[str, Any]) -> Caller:
    """The caller that verified claims name. A claim that is there and wrong is refused, never ignored."""
    return Caller(
        sub=_name(claims, "sub", claims.get("sub")),
        tenant=_name(claims, "tenant", DEFAULT_TENANT),
        session_id=_session_id(claims),
        scopes=_scopes(claims),
    )


def _name(claims: Mapping[str, Any], claim: str, default: Any) -> str:
    value = claims.get(claim, default)
    if not isinstance(value, str) or not value.strip():
        raise unauthenticated(f"the claim {claim} must be a non-empty string")
    if len(value) > 255 or _UNFIT_FOR_A_NAME.search(value):
        raise unauthenticated(f"the claim {claim} is longer than 255 characters or holds control characters")
    return value


def _session_id(claims: Mapping[str, Any]) -> str | None:
    if "session_id" not in claims:
        return None
    value = claims["session_id"]
    if not isinstance(value, str) or not _SESSION_ID.fullmatch(value):
        raise unauthenticated("the claim session_id must be 1 to 128 characters of A-Za-z0-9_-.:")
    return value


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    if "scope" not in claims:
        return DEFAULT_SCOPES
    value = claims["scope"]
    if not isinstance(value, str):
        raise unauthenticated("the claim scope must be a string of words")
    return frozenset(value.split())


def mint(
    settings: Settings,
    sub: str,
    *,
    tenant: str | None = None,
    session_id: str | None = None,
    scope: str | None = None,
    hours: float = 12,
) -> str:
    """A signed token, where the secret is ours. ``ConfigurationError`` if it is not, or a claim is wrong."""
    key = session_key(settings)
    if key.kind != "secret":
        raise ConfigurationError("Tokens are signed elsewhere here: only with AUTH_JWT_SECRET can one be made")
    now = int(time.time())
    claims: dict[str, Any] = {"sub": sub, "iat": now, "exp": now + round(hours * 3600)}
    optional = {
        "tenant": tenant,
        "session_id": session_id,
        "scope": scope,
        "iss": settings.auth_issuer,
        "aud": settings.auth_audience,
    }
    claims.update({name: value for name, value in optional.items() if value is not None})
    try:
        unknown = caller_of(claims).scopes - SCOPES
    except Unauthenticated as error:
        raise ConfigurationError(f"No token is made: {error.detail}") from None
    if unknown:
        raise ConfigurationError(
            f"No token is made: no route knows the scope {min(unknown)[:80]!r}; there are {', '.join(sorted(SCOPES))}"
        )
    return jwt.encode(claims, key.value, algorithm=key.algorithms[0])
