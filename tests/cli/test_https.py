"""A server behind TLS: whom this machine believes is believed, and a refusal says what a person can do."""

from __future__ import annotations

import datetime
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.cli.conftest import invoke

PROBLEM = b'{"code": "unauthorized", "detail": "Who?", "category": "auth", "advice": "Send a header."}'


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("content-length", str(len(PROBLEM)))
        self.end_headers()
        self.wfile.write(PROBLEM)

    def log_message(self, *_arguments: object) -> None:
        pass


def a_certificate(path) -> None:
    """A certificate of 127.0.0.1 that vouches for itself, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority of our own")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)


@pytest.fixture
def behind_tls(tmp_path):
    a_certificate(tmp_path / "own.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", str(tmp_path / "own.pem")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("token", "says"), [("hf_x", "one that is in use"), (None, "HOLDFAST_ENV=local")])
def test_an_authority_of_ones_own_is_believed_and_a_refusal_is_for_people(behind_tls, token, says):
    url, authority = behind_tls
    ran = invoke("queue", "list", HOLDFAST_URL=url, HOLDFAST_TOKEN=token, SSL_CERT_FILE=authority)
    assert "Who?" in ran.err and says in ran.err and "header" not in ran.err


def test_an_unknown_authority_is_not_believed(behind_tls):
    ran = invoke("queue", "list", HOLDFAST_URL=behind_tls[0], HOLDFAST_TOKEN="hf_x", SSL_CERT_FILE=None)
    assert ran.code != 0 and "certificate" in ran.err.lower()
