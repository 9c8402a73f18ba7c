"""The settings: what is taken, what is refused, and a line that says what to do and tells no secret."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from core.errors import ConfigurationError
from core.settings import Settings, load_settings

SECRET = "s3cret-" * 8


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


def refusal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    line = str(caught.value)
    assert "\n" not in line
    return line


def accepted(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def public_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = load_settings()

    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.data_dir == Path("data")
    assert (settings.database_url, settings.nats_url) == (None, None)
    assert (settings.llm_provider, settings.llm_base_url) == ("de2generator", None)
    assert (settings.turn_workers, settings.call_threads, settings.cancel_timeout_ms) == (8, 256, 500)
    assert settings.idle_limit_ms == 600_000
    assert not settings.auto_title
    assert settings.compact_at_tokens == 100_000
    assert settings.tools_allowed == ()
    assert settings.configured_key is None
    assert list(settings.agents) == ["default"]
    assert settings.needs_stand_in


def test_a_dotenv_file_in_the_working_directory_is_read_and_the_environment_wins_over_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("PORT=9001\nCALL_THREADS=7\nSOMETHING_ELSE=1\n")

    settings = accepted(monkeypatch, PORT="9002")

    assert (settings.port, settings.call_threads) == (9002, 7)


def test_a_dotenv_file_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"PORT=\xff\xfe\n")

    assert ".env" in refusal(monkeypatch)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = accepted(monkeypatch, PORT="", AUTH_JWT_SECRET="", LLM_BASE_URL="", TOOLS_ALLOWED="")

    assert settings.port == 8000
    assert settings.configured_key is None
    assert settings.needs_stand_in


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PORT", "80.5"),
        ("LLM_PROVIDER", "gpt"),
        ("TURN_WORKERS", "0"),
        ("CALL_THREADS", "-3"),
        ("CANCEL_TIMEOUT_MS", "0"),
        ("CANCEL_TIMEOUT_MS", "half a second"),
        ("IDLE_LIMIT_MS", "-1"),
        ("IDLE_LIMIT_MS", "604800001"),
        ("IDLE_LIMIT_MS", "ten minutes"),
        ("IDLE_LIMIT_MS", "nan"),
        ("IDLE_LIMIT_MS", "inf"),
        ("IDLE_LIMIT_MS", "1.5"),
        ("AUTO_TITLE", "perhaps"),
        ("COMPACT_AT_TOKENS", "-1"),
        ("COMPACT_AT_TOKENS", "many"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable_and_the_cure(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    line = refusal(monkeypatch, **{name: value})

    assert line.startswith(f"{name}={value!r} is wrong: give ")


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"NATS_URL": "nats://127.0.0.1:4222"}, "NATS_URL"),
    ],
)
def test_what_is_not_built_yet_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], word: str
) -> None:
    line = refusal(monkeypatch, **variables)

    assert word in line
    assert "built" in line


def test_titles_are_off_until_they_are_said_to_be_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not accepted(monkeypatch).auto_title
    assert not accepted(monkeypatch, AUTO_TITLE="off").auto_title
    assert accepted(monkeypatch, AUTO_TITLE="on").auto_title


def test_no_tool_is_allowed_until_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert accepted(monkeypatch).tools_allowed == ()
    assert accepted(monkeypatch, TOOLS_ALLOWED=" shell ").tools_allowed == ("shell",)
    assert "'sheII'" in refusal(monkeypatch, TOOLS_ALLOWED="shell, sheII")
    (tmp_path / "agents.json").write_text('[{"name": "a", "tools": ["shell"]}]')
    assert "TOOLS_ALLOWED" in refusal(monkeypatch, AGENTS_FILE="agents.json")
    agents = accepted(monkeypatch, AGENTS_FILE="agents.json", TOOLS_ALLOWED="shell").agents
    assert (agents["a"].tools, agents["default"].tools) == (("shell",), None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_the_own_machine_needs_no_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert accepted(monkeypatch, HOST=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "127.0.0.1.example.org"])
def test_another_host_is_refused_without_a_key_and_served_with_one(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    line = refusal(monkeypatch, HOST=host)
    assert line.startswith(f"HOST={host!r}")
    assert "AUTH_JWT_SECRET" in line

    assert accepted(monkeypatch, AUTH_JWT_SECRET=SECRET).host == host


def test_a_short_secret_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, AUTH_JWT_SECRET="hunter2-hunter2")

    assert "AUTH_JWT_SECRET" in line
    assert "32" in line
    assert "hunter2" not in line


def test_secrets_are_not_in_the_printed_form_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = accepted(
        monkeypatch,
        AUTH_JWT_SECRET=SECRET,
        LLM_API_KEY="key-abc",
        REMOTE_SESSION_API_TOKEN="remote-abc",
        DATABASE_URL="sqlite:////tmp/pass-abc.db",
    )

    assert settings.configured_key is not None
    shown = repr(settings) + str(settings) + repr(settings.configured_key)
    assert not any(word in shown for word in (SECRET, "key-abc", "remote-abc", "pass-abc"))


@pytest.mark.parametrize("words", ["none", "None", "HS256,none", "HS256,nOnE"])
def test_the_algorithm_none_is_refused(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    line = refusal(monkeypatch, AUTH_JWT_SECRET=SECRET, AUTH_JWT_ALGORITHMS=words)

    assert "AUTH_JWT_ALGORITHMS" in line
    assert "nobody signed" in line


@pytest.mark.parametrize("word", ["RS256", "ES256", "PS512", "HS257", "hs256"])
def test_an_algorithm_that_is_not_for_a_secret_is_refused_with_one(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    assert repr(word) in refusal(monkeypatch, AUTH_JWT_SECRET=SECRET, AUTH_JWT_ALGORITHMS=word)


def test_a_longer_hash_needs_a_longer_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "64" in refusal(monkeypatch, AUTH_JWT_SECRET="x" * 63, AUTH_JWT_ALGORITHMS="HS256,HS512")


def test_a_public_key_is_taken_as_text_as_escaped_text_and_as_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pem = public_pem(ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "key.pem").write_text(pem)

    for given in (pem, pem.replace("\n", "\\n"), str(tmp_path / "key.pem"), "key.pem"):
        key = accepted(monkeypatch, AUTH_JWT_PUBLIC_KEY=given).configured_key
        assert key is not None
        assert (key.kind, key.algorithms) == ("public", ("ES256",))


def test_an_rsa_key_means_rs256_unless_another_of_its_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pem = public_pem(rsa.generate_private_key(65537, 2048))

    key = accepted(monkeypatch, AUTH_JWT_PUBLIC_KEY=pem).configured_key
    assert key is not None
    assert key.algorithms == ("RS256",)
    key = accepted(monkeypatch, AUTH_JWT_ALGORITHMS="PS256, RS512").configured_key
    assert key is not None
    assert key.algorithms == ("PS256", "RS512")


@pytest.mark.parametrize("word", ["HS256", "ES256"])
def test_an_algorithm_that_does_not_fit_the_public_key_is_refused(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    pem = public_pem(rsa.generate_private_key(65537, 2048))

    assert repr(word) in refusal(monkeypatch, AUTH_JWT_PUBLIC_KEY=pem, AUTH_JWT_ALGORITHMS=word)


def test_what_is_no_usable_public_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    small = public_pem(rsa.generate_private_key(65537, 1024))
    other = public_pem(ed25519.Ed25519PrivateKey.generate())
    broken = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"

    for given in (private, small, other, broken, "no/such/file.pem", "x" * 5000):
        line = refusal(monkeypatch, AUTH_JWT_PUBLIC_KEY=given)
        assert "AUTH_JWT_PUBLIC_KEY" in line
        assert len(line) < 250
    assert private.splitlines()[1] not in refusal(monkeypatch, AUTH_JWT_PUBLIC_KEY=private)


def test_two_signers_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, AUTH_JWT_SECRET=SECRET, AUTH_JWKS_URL="https://keys.example/jwks")

    assert "AUTH_JWT_SECRET and AUTH_JWKS_URL" in line


def test_a_key_server_goes_with_no_shared_secret_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    key = accepted(monkeypatch, AUTH_JWKS_URL="https://keys.example/jwks").configured_key
    assert key is not None
    assert key.algorithms == ("RS256", "ES256")

    assert "'HS256'" in refusal(monkeypatch, AUTH_JWT_ALGORITHMS="RS256,HS256")


def test_an_algorithm_without_the_key_it_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "AUTH_JWT_PUBLIC_KEY" in refusal(monkeypatch, AUTH_JWT_ALGORITHMS="RS256")


@pytest.mark.parametrize("url", ["ftp://keys", "keys.example", "file:///etc/passwd", "https://"])
def test_a_key_server_is_asked_by_http_only(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert refusal(monkeypatch, AUTH_JWKS_URL=url).startswith("AUTH_JWKS_URL=")


def test_openai_needs_a_base_that_ends_in_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "LLM_BASE_URL" in refusal(monkeypatch, LLM_PROVIDER="openai")
    assert "/v1" in refusal(monkeypatch, LLM_BASE_URL="http://127.0.0.1:9000")

    settings = accepted(monkeypatch, LLM_BASE_URL="http://127.0.0.1:9000/v1/")
    assert settings.llm_base_url == "http://127.0.0.1:9000/v1"
    assert not settings.needs_stand_in


def test_anthropic_needs_a_base_that_may_end_in_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, LLM_PROVIDER="anthropic")
    assert line.startswith("LLM_PROVIDER=anthropic needs LLM_BASE_URL")

    for url in ("http://127.0.0.1:9000", "http://127.0.0.1:9000/v1"):
        settings = accepted(monkeypatch, LLM_BASE_URL=url)
        assert settings.llm_base_url == url
        assert not settings.needs_stand_in


def test_a_gateway_address_leaves_v1_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "/v1" in refusal(monkeypatch, LLM_BASE_URL="http://127.0.0.1:9000/v1")

    assert accepted(monkeypatch, LLM_BASE_URL="http://127.0.0.1:9000/").llm_base_url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9000", "ftp://host", "http://", "http://host:99999", "http://host/a?b", "http://[::1"]
)
def test_a_model_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert refusal(monkeypatch, LLM_BASE_URL=url).startswith("LLM_BASE_URL=")


def test_a_password_in_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, LLM_PROVIDER="openai", LLM_BASE_URL="https://me:hunter2@host/other")

    assert "hunter2" not in line
    assert "host/other" in line


def test_a_database_of_another_kind_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refusal(monkeypatch, DATABASE_URL="mysql://me:hunter2@host/db")

    assert line.startswith("DATABASE_URL")
    assert "hunter2" not in line


def test_agents_are_read_from_their_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "agents.json").write_text(
        '{"agents": [{"name": "writer", "instructions": "Write.", "model": "m1", "tools": []}]}'
    )

    agents = accepted(monkeypatch, AGENTS_FILE="agents.json").agents

    assert sorted(agents) == ["default", "writer"]
    assert (agents["writer"].instructions, agents["writer"].model) == ("Write.", "m1")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "JSON"),
        ('"agents"', "shape"),
        ("[3]", "agent 1"),
        ('[{"instructions": "x"}]', "name"),
        ('[{"name": "a", "color": "red"}]', "color"),
        ('[{"name": "a"}, {"name": "a"}]', "'a'"),
        ('[{"name": "a b"}]', "name"),
        ('[{"name": "a", "tools": "shell"}]', "tools"),
        ('[{"name": "a", "model": "m", "fallback_model": "m"}]', "fallback_model is the model itself"),
        ('[{"name": "a", "model": "m", "model_pattern": "m*"}]', "exclude each other"),
        ('[{"name": "a", "fallback_model": ["m"]}]', "fallback_model"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_wrong_agents_file_is_refused_with_the_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, word: str
) -> None:
    (tmp_path / "agents.json").write_text(text)

    line = refusal(monkeypatch, AGENTS_FILE="agents.json")

    assert line.startswith("AGENTS_FILE")
    assert word in line


def test_a_missing_agents_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'no.json'" in refusal(monkeypatch, AGENTS_FILE="no.json")
