"""Whose signature a token must bear: a shared secret, a public key, or a key server. Never two of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from core.errors import ConfigurationError

#: RFC 7518 section 3.2: a shared secret is at least as long as the hash. Bytes.
SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
#: RFC 7518 section 3.4: each of these goes with one curve.
CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
KNOWN_ALGORITHMS = (*SECRET_BYTES, *RSA_ALGORITHMS, *CURVES)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """What tokens are checked against; the algorithms are fixed here and never read from a token."""

    kind: Literal["secret", "public", "jwks"]
    algorithms: tuple[str, ...]
    #: The secret, the PEM text, or the address of the key server.
    value: str = field(repr=False)


def secret_key(secret: str, algorithms: tuple[str, ...]) -> TrustedKey:
    """A key shared with whoever signs. Raises ``ConfigurationError`` if it is short or of the wrong kind."""
    algorithms = algorithms or ("HS256",)
    for name in algorithms:
        if name not in SECRET_BYTES:
            _refuse_algorithm(name, "is not for a shared secret", "HS256, or AUTH_JWT_PUBLIC_KEY instead")
        if len(secret.encode()) < SECRET_BYTES[name]:
            raise ConfigurationError(
                f"AUTH_JWT_SECRET is too short for {name}: give at least {SECRET_BYTES[name]} random bytes, "
                "such as those of: openssl rand -base64 48"
            )
    return TrustedKey("secret", algorithms, secret)


def public_key(pem_or_path: str, algorithms: tuple[str, ...]) -> TrustedKey:
    """The public half of the signer's key, as PEM text or as the path of a PEM file."""
    pem = _read_pem(pem_or_path)
    if "PRIVATE KEY" in pem:
        raise ConfigurationError("AUTH_JWT_PUBLIC_KEY is a private key: give the public one, and renew the pair")
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            "AUTH_JWT_PUBLIC_KEY is no public key in PEM form: give -----BEGIN PUBLIC KEY----- …, or its path"
        ) from None
    fitting = _algorithms_of(key)
    for name in algorithms:
        if name not in fitting:
            _refuse_algorithm(name, "does not fit AUTH_JWT_PUBLIC_KEY", " or ".join(fitting))
    return TrustedKey("public", algorithms or fitting[:1], pem)


def key_server(url: str, algorithms: tuple[str, ...]) -> TrustedKey:
    """A server that publishes the signer's public keys (RFC 7517)."""
    for name in algorithms:
        if name in SECRET_BYTES:
            _refuse_algorithm(name, "needs a shared secret and a key server has none", "RS256 or ES256")
    return TrustedKey("jwks", algorithms or ("RS256", "ES256"), url)


def check_algorithms(algorithms: tuple[str, ...]) -> None:
    """Refuse a word that is no algorithm of ours, above all ``none``."""
    for name in algorithms:
        if name.lower() == "none":
            _refuse_algorithm(name, "would accept tokens that nobody signed", "HS256, RS256 or ES256")
        if name not in KNOWN_ALGORITHMS:
            _refuse_algorithm(name, "is not known", "a comma list of " + ", ".join(KNOWN_ALGORITHMS))


def _refuse_algorithm(name: str, why: str, instead: str) -> NoReturn:
    raise ConfigurationError(f"AUTH_JWT_ALGORITHMS names {name[:40]!r}, which {why}: use {instead}")


def _read_pem(pem_or_path: str) -> str:
    if "-----BEGIN" in pem_or_path:
        # An environment variable often carries its line ends as the two characters \n.
        return pem_or_path.replace("\\n", "\n")
    try:
        return Path(pem_or_path).expanduser().read_text("utf-8")
    except (OSError, ValueError):
        raise ConfigurationError(
            f"AUTH_JWT_PUBLIC_KEY={pem_or_path[:80]!r} cannot be read: give PEM text, or a path to it"
        ) from None


def _algorithms_of(key: object) -> tuple[str, ...]:
    if isinstance(key, RSAPublicKey):
        if key.key_size < 2048:
            raise ConfigurationError("AUTH_JWT_PUBLIC_KEY is too small: give an RSA key of 2048 bits or more")
        return RSA_ALGORITHMS
    if isinstance(key, EllipticCurvePublicKey):
        fitting = tuple(name for name, curve in CURVES.items() if curve == key.curve.name)
        if fitting:
            return fitting
    raise ConfigurationError("AUTH_JWT_PUBLIC_KEY is of a kind that is not supported: give an RSA or a P-256 key")
