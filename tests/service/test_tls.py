"""TLS by files: served, believed by agents and the command line by the same files, and refused in one sentence if wrong."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from serving import TOKEN

from coordinator.core.http import Client, Unreachable
from coordinator.core.tls import BadCertificate, verification
from coordinator.settings import Settings, SettingsError


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """One that was made for itself, with a name no replica has."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}.example"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_the_same_files_on_all_replicas_serve_tls_and_say_whom_to_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path, "ours")
    other, _ = certificate(tmp_path, "another")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    environment = {
        **own,
        "RANKCALL_TOKEN": TOKEN,
        "RANKCALL_HOST": "127.0.0.1",
        "RANKCALL_PORT": str(port),
        "RANKCALL_STATE_DIR": str(tmp_path / "state"),
        "RANKCALL_TLS_CERT": str(cert),
        "RANKCALL_TLS_KEY": str(key),
    }
    with (tmp_path / "log").open("wb") as log:
        coordinator = subprocess.Popen([sys.executable, "-m", "coordinator"], env=environment, stderr=log)
        agent = subprocess.Popen(
            [sys.executable, "-m", "agent"],
            env={**environment, "RANKCALL_PEERS": "127.0.0.1", "RANKCALL_STATE_DIR": str(tmp_path / "agent")},
            stderr=log,
        )
    try:
        monkeypatch.setenv("RANKCALL_TLS_CERT", str(cert))
        deadline = time.monotonic() + 60
        while True:  # by its address, which the certificate does not name
            try:
                with Client(f"https://127.0.0.1:{port}", token=TOKEN) as client:
                    if b'"alive":true' in client.request("GET", "/api/v1/replicas").body:
                        break
            except Unreachable:
                pass
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        monkeypatch.setenv("RANKCALL_TLS_CA", str(other))
        with Client(f"https://127.0.0.1:{port}", token=TOKEN) as client, pytest.raises(Unreachable):
            client.request("GET", "/healthz")
        monkeypatch.delenv("RANKCALL_TLS_CA")
        with Client(f"http://127.0.0.1:{port}", token=TOKEN) as client, pytest.raises(Unreachable):
            client.request("GET", "/healthz")
        listed = subprocess.run(
            [sys.executable, "-m", "coordinator.cli", "nodes", "--json"],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert listed.returncode == 0 and '"alive": true' in listed.stdout.replace(":true", ": true"), listed
    finally:
        for process in (agent, coordinator):
            process.terminate()
            process.wait(30)


def test_files_that_cannot_serve_tls_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path, "ours")
    _, foreign = certificate(tmp_path, "another")
    for variables, said in (
        ((cert, None), "set both or neither"),
        ((cert, foreign), "no certificate and its key"),
        ((tmp_path / "missing.pem", key), "No such file"),
        ((key, cert), "no certificate and its key"),
    ):
        for name, path in zip(("CERT", "KEY"), variables, strict=True):
            monkeypatch.setenv(f"RANKCALL_TLS_{name}", str(path or ""))
        with pytest.raises(SettingsError, match=said):
            Settings.from_environment()


def test_without_files_the_machines_certificates_and_the_name_count(tmp_path: Path) -> None:
    public = verification("https://public.example", {})
    assert public.check_hostname and public.verify_mode is ssl.CERT_REQUIRED
    cert, _ = certificate(tmp_path, "ours")
    own = verification("https://10.0.0.7:8000", {"RANKCALL_TLS_CA": str(cert)})
    assert not own.check_hostname and own.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(BadCertificate):
        verification("https://10.0.0.7:8000", {"RANKCALL_TLS_CA": str(tmp_path / "missing.pem")})


@pytest.mark.parametrize("module", ["agent", "agent.proxy", "coordinator.cli nodes"])
def test_a_ca_that_cannot_be_read_is_one_sentence_wherever_it_is_used(module: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", *module.split()],
        env={**os.environ, "RANKCALL_TLS_CA": "/missing/ca.pem", "RANKCALL_STATE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2 and "/missing/ca.pem" in ran.stderr and "Traceback" not in ran.stderr


def test_a_certificate_that_is_not_trusted_is_said_with_the_variable_that_trusts_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with (
                    connection,
                    contextlib.suppress(OSError),
                    context.wrap_socket(connection, server_side=True),
                ):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with Client(f"https://127.0.0.1:{port}") as client, pytest.raises(Unreachable) as untrusted:
            client.request("GET", "/api/v1/jobs")
        with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unreachable) as plain:
            client.request("GET", "/api/v1/jobs")
        thread.join(10)
    assert "certificate is not trusted" in untrusted.value.reason
    assert "RANKCALL_TLS_CA" in untrusted.value.hint and "RANKCALL_TLS_CERT" in untrusted.value.hint
    assert "https://" in plain.value.hint
