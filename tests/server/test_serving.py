"""`actorllm serve`: where it listens, what it is told, and what it writes."""

import json
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from actorllm import MachineError
from actorllm.cli import main
from actorllm.cli.listening import Tls, address_of, give_up_unread, listen, listen_unix
from actorllm.cli.logs import log_to_stderr

from .process import serving


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The paths of a certificate and of its key."""
    place = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(place / "cert.pem"))
    issued.private_key_pem.write_to_path(str(place / "key.pem"))
    return str(place / "cert.pem"), str(place / "key.pem")


@pytest.mark.slow
def test_over_tls_with_keys_of_the_environment(
    authority: trustme.CA, files: tuple[str, str], tmp_path: Path
) -> None:
    options = ["--ssl-certfile", files[0], "--ssl-keyfile", files[1], "--max-body-bytes", "100"]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serving(tmp_path, *options, environment={"ACTORLLM_API_KEY": "sk-alone red=sk-red"}) as served:
        assert served.address.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=served.address, verify=context, timeout=30) as client:
            models = {key: client.get("/models", headers={"x-api-key": key}) for key in ("sk-red", "red")}
            body = {"prompt": "a" * 200}
            large = client.post("/completions", json=body, headers={"authorization": "Bearer sk-alone"})
        served.kill(signal.SIGTERM)
        code, log = served.ended()
    assert (models["sk-red"].status_code, models["red"].status_code, large.status_code) == (200, 401, 413)
    assert code == 0
    lines = [json.loads(line) for line in log if line.startswith("{")]
    assert [(line["path"], line["status"], line["tenant"]) for line in lines] == [
        ("/v1/models", 200, "red"),
        ("/v1/models", 401, ""),
        ("/v1/completions", 413, ""),
    ]
    assert lines[0]["request_id"] == models["sk-red"].headers["x-request-id"]
    assert "sk-" not in "".join(log)


@pytest.mark.slow
def test_at_a_unix_socket_and_quietly(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with serving(tmp_path, "--uds", str(path), "--log-level", "error", "--grace", "0") as served:
        assert served.address == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=30) as client:
            health = client.get("/health").json()
        served.kill(signal.SIGINT)
        code, log = served.ended()
    assert (health["status"], health["model"]) == ("ok", "hash")
    assert (code, log) == (0, [])
    assert not path.exists()


def test_a_socket_that_a_dead_server_left_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with listen_unix(path) as listener:
        assert address_of(listener, has_tls=False) == f"unix:{path}"
        with pytest.raises(MachineError, match=r"cannot listen at .*s\.sock: Address already in use"):
            listen_unix(path).__enter__()
        assert Path(path).exists()
    assert not Path(path).exists()


def test_the_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with listen_unix(str(path)):
        path.rename(tmp_path / "old.sock")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "reason"), [("file", "a file that is no socket is there"), ("x" * 200, "too long a path")]
)
def test_a_path_that_can_be_no_socket_is_told(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(MachineError, match=reason):
        listen_unix(str(tmp_path / name)).__enter__()
    assert (tmp_path / "file").read_text() == "precious"


def test_an_address_tells_how_to_ask(files: tuple[str, str]) -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener, has_tls=False) == f"http://127.0.0.1:{port}/v1"
        assert address_of(listener, has_tls=Tls.of(*files) is not None) == f"https://127.0.0.1:{port}/v1"
    with listen("::1", 0) as listener:
        assert address_of(listener, has_tls=False).startswith("http://[::1]:")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ssl-keyfile", "key.pem"], 2, "--ssl-keyfile needs --ssl-certfile"),
        (["--ssl-certfile", "/no/cert.pem"], 1, "cannot serve TLS with /no/cert.pem: No such file"),
        (["--log-level", "loud"], 2, "--log-level must be one of debug, info, warning, error, not 'loud'"),
        (["--api-key", "a b"], 2, "api_keys: a key must be at most 1000 characters"),
        (["--grace", "-1"], 2, "grace must be finite and at least 0 seconds, not -1.0"),
        (["--allowed-origins", "chat"], 2, "allowed_origins must be * or such as https://chat.example.com"),
        (["--max-step-seconds", "0"], 2, "max_step_seconds must be finite and above 0 seconds"),
    ],
)
def test_a_wrong_option_is_told_in_a_line(
    arguments: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "hash", "--port", "0", *arguments) == code
    err = capfd.readouterr().err
    assert err.startswith(f"actorllm: {message}")
    assert err.count("\n") == 1


def test_a_key_that_does_not_belong_to_the_certificate_is_told(
    authority: trustme.CA, files: tuple[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    with pytest.raises(MachineError, match=r"cannot serve TLS with .*cert\.pem and .*other\.pem: .*MISMATCH"):
        Tls(files[0], str(other))


def test_an_empty_key_in_the_environment_does_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTORLLM_API_KEY", " ")
    assert run("serve", "hash", "--port", "0") == 2
    assert capfd.readouterr().err.startswith("actorllm: ACTORLLM_API_KEY is set and empty")


def test_the_version_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    name, version = capfd.readouterr().out.split()
    assert (name, version.count(".") >= 1) == ("actorllm", True)


@pytest.fixture
def restored() -> Iterator[None]:
    """The loggers are afterwards as they were."""
    loggers = [logging.getLogger(name) for name in ("actorllm", "actorllm.access", "uvicorn")]
    before = [(logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers, logger.propagate = handlers, propagate


@pytest.mark.usefixtures("restored")
def test_lines_are_for_people_and_requests_are_json(capfd: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("warning")
    logging.getLogger("actorllm.serve").info("too much")
    logging.getLogger("actorllm.serve").warning("look here")
    logging.getLogger("actorllm.access").warning("{}")
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith(" WARNING actorllm.serve: look here")
    assert second == "{}"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the option is Linux's")
def test_the_kernel_drops_what_nobody_reads() -> None:
    with listen("127.0.0.1", 0) as listener:
        give_up_unread(listener, 0.5)
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 501
