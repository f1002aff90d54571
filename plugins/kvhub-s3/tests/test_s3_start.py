"""Start or refuse: what an operator reads when a bucket cannot be worked in."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from s3server import ACCESS, SECRET, FaultProxy, Server

import kvhub_s3
from kvhub.errors import KvhubError
from kvhub.testing.region import make_key
from kvhub.testing.wire_certs import authority, certificate
from kvhub_s3 import BucketStore

SKEW = "<RequestTime>20260101T000000Z</RequestTime><ServerTime>2026-01-01T00:20:00Z</ServerTime>"


@pytest.fixture
def refusal(open_pool, server: Server, bucket: str) -> Callable[..., str]:
    def refusal(**options: object) -> str:
        with pytest.raises(KvhubError) as caught:
            open_pool(**options)
        said = str(caught.value)
        assert said.startswith("pool: ") and ";" in said, "thing, place, what was found, next step"
        assert SECRET not in said and "Debug source" not in said
        return said

    return refusal


def test_the_hook_hands_over_one_kind() -> None:
    assert kvhub_s3.kvhub_register_stores() == (BucketStore,)


def test_E17_missing_bucket(refusal, server) -> None:
    assert refusal(bucket="no-such-bucket") == (
        f"pool: bucket no-such-bucket at {server.endpoint}/no-such-bucket does not exist; create it or name another"
    )


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "KVTEST_SECRET_ACCESS_KEY",
            "wrong",
            "does not permit this (403 SignatureDoesNotMatch); check the credentials",
        ),
        ("KVTEST_ACCESS_KEY_ID", "wrong", "does not permit this (403 InvalidAccessKeyId); check the credentials"),
    ],
)
def test_E17_wrong_credentials(refusal, monkeypatch, variable, value, words) -> None:
    monkeypatch.setenv(variable, value)
    assert words in refusal()


def test_E17_missing_variables(refusal, monkeypatch) -> None:
    monkeypatch.delenv("KVTEST_SECRET_ACCESS_KEY")
    said = refusal()
    assert said == "pool: credentials.env is KVTEST, and KVTEST_SECRET_ACCESS_KEY is not set; export it"
    monkeypatch.delenv("KVTEST_ACCESS_KEY_ID")
    assert "KVTEST_ACCESS_KEY_ID and KVTEST_SECRET_ACCESS_KEY are not set; export them" in refusal()


def test_E17_nobody_listens(refusal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    said = refusal(endpoint=f"http://127.0.0.1:{port}")
    assert "cannot be reached (no connection); check endpoint, name service, routes and firewalls" in said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 403, "code": "AccessDenied"}, "without which a miss cannot be told from a refusal; grant"),
        ({"status": 403, "code": "RequestTimeTooSkewed", "text": SKEW}, "this machine's clock is -1200 s from the"),
        ({"status": 301, "code": "PermanentRedirect"}, "is in another region, or at another endpoint"),
        ({"status": 400, "code": "AuthorizationHeaderMalformed"}, "is in another region, or at another endpoint"),
        ({"status": 503, "code": "SlowDown"}, "is throttled (503 SlowDown); lower 'workers'"),
        ({"status": 500, "code": "InternalError"}, "is at a server that fails (500 InternalError)"),
        ({"status": 400, "code": "InvalidRequest"}, "refuses the request (400 InvalidRequest); check bucket"),
    ],
    ids=lambda value: value.get("code") if isinstance(value, dict) else "",
)
def test_E17_what_the_server_says(refusal, proxy: FaultProxy, fault, words) -> None:
    with proxy.failing("answer", **fault):
        assert words in refusal(endpoint=proxy.endpoint)


def test_E17_no_permission_to_write(refusal, proxy: FaultProxy) -> None:
    with proxy.failing("answer", methods=("PUT",), status=403, code="AccessDenied"):
        assert "does not permit this (403 AccessDenied); check the credentials and the policy" in refusal(
            endpoint=proxy.endpoint
        )


def test_E17_no_permission_to_delete(refusal, proxy: FaultProxy) -> None:
    with proxy.failing("answer", methods=("POST", "DELETE"), status=403, code="AccessDenied"):
        assert "does not permit this (403 AccessDenied)" in refusal(endpoint=proxy.endpoint)


def test_E17_silence_is_bounded(refusal, proxy: FaultProxy) -> None:
    with proxy.failing("hang"):
        before = time.monotonic()
        assert "did not answer in time" in refusal(endpoint=proxy.endpoint, stall_timeout=0.3)
        assert time.monotonic() - before < 5.0


def test_E17_a_medium_that_returns_other_bytes(refusal, proxy: FaultProxy, objects) -> None:
    with proxy.failing("garble", methods=("GET",)):
        assert "what was read is not what was written" in refusal(endpoint=proxy.endpoint)
    assert objects.listed() == []


@contextmanager
def over_tls(server: Server, folder) -> Iterator[FaultProxy]:
    authority(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate(folder))
    proxy = FaultProxy(server.port, tls=context)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def test_E17_tls_is_checked_unless_told_otherwise(refusal, open_pool, server, tmp_path) -> None:
    with over_tls(server, tmp_path) as proxy:
        said = refusal(endpoint=proxy.endpoint)
        assert "has no TLS that can be trusted" in said and "ca_file" in said
        for more in ({"ca_file": str(tmp_path / "ca.pem")}, {"verify_tls": False}):
            pool = open_pool(endpoint=proxy.endpoint, **more)
            pool.keep({make_key("x"): b"over tls"})
            assert pool.read([make_key("x")]) == [b"over tls"]


def test_E17_tls_to_a_server_without(refusal, server) -> None:
    assert "has no TLS that can be trusted" in refusal(endpoint=server.endpoint.replace("http:", "https:"))


def test_E17_ca_file_that_is_not_there(refusal, tmp_path) -> None:
    said = refusal(ca_file=str(tmp_path / "absent.pem"))
    assert said == f"pool: ca_file {tmp_path}/absent.pem cannot be read: No such file or directory; check it"


def test_the_default_chain_takes_the_usual_variables(open_pool, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    pool = open_pool(credentials=None)
    pool.keep({make_key("x"): b"x"})


def test_E17_no_credentials_anywhere(refusal, monkeypatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
    assert "needs credentials and none were found; name variables with 'credentials: {env: PREFIX}'" in refusal(
        credentials=None
    )


def test_a_session_token_goes_along(open_pool, proxy: FaultProxy, monkeypatch) -> None:
    monkeypatch.setenv("KVTEST_SESSION_TOKEN", "the-token")
    with contextlib.suppress(KvhubError):  # the test's server knows no tokens
        open_pool(endpoint=proxy.endpoint)
    assert proxy.seen
    assert all("the-token" in request.head for request in proxy.seen)


def test_C15_no_checksum_header_and_no_trailer_is_sent(open_pool, proxy: FaultProxy) -> None:
    """Some servers refuse them, others store the trailer as part of the object."""
    pool = open_pool(endpoint=proxy.endpoint)
    pool.keep({make_key("x"): b"x" * 5000})
    puts = [request.head for request in proxy.seen if request.method == "PUT"]
    assert puts
    for head in puts:
        assert "x-amz-content-sha256: unsigned-payload" in head
        assert not [word for word in ("x-amz-checksum", "x-amz-trailer", "aws-chunked", "chunked") if word in head]


def test_other_variables_do_not_undo_the_file(open_pool, monkeypatch) -> None:
    """What a shell exports for other tools must not send KV elsewhere, nor mix two identities."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_BUCKET": "another",
        "AWS_ACCESS_KEY_ID": "another",
        "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_SESSION_TOKEN": "another",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, value)
    open_pool().keep({make_key("x"): b"x"})


def test_E18_a_role_that_only_retrieves_writes_nothing(open_pool, proxy: FaultProxy, objects) -> None:
    """Not at start, not when it meets a damaged chunk, and not at the end."""
    writer = open_pool()
    keys = [make_key(number) for number in range(2)]
    writer.save(dict.fromkeys(keys, b"x" * 5000))
    objects.write(writer.member.context, keys[1], b"spoilt")
    proxy.seen.clear()
    reader = open_pool(writes=False, endpoint=proxy.endpoint)
    assert [reader.load([key]).outcomes[0].name for key in keys] == ["DONE", "CORRUPT"]
    reader.close()
    assert {request.method for request in proxy.seen} == {"GET", "HEAD"}


def test_the_probe_leaves_nothing(open_pool, objects) -> None:
    pool = open_pool()
    space = pool.member.context.namespace.hex()[:32]
    assert [key.partition("/")[2] for key in objects.listed()] == [f"v1/namespaces/{space}/namespace.json"]


def test_the_key_begins_with_its_own_digits(pool, objects) -> None:
    key = make_key("x")
    pool.keep({key: b"x"})
    space, name = pool.member.context.namespace.hex()[:32], key.hex()
    assert f"v1/{name[:2]}/{space}/{name}.kv" in [found.partition("/")[2] for found in objects.listed()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            b'{"model": "another", "dtype": "float16"}',
            "tells of another namespace than this hub's: dtype, model differ",
        ),
        (b"", "is no JSON object; delete that one object, then start again"),
        (b"[]", "is no JSON object; delete that one object, then start again"),
    ],
)
def test_another_namespace_in_our_place_is_refused(open_pool, refusal, server, bucket, prefix, text, words) -> None:
    space = open_pool().member.context.namespace.hex()[:32]
    where = f"{prefix}/v1/namespaces/{space}/namespace.json"
    assert server.rest(bucket).ask("PUT", where, body=text).status == 200
    assert f"pool: {bucket}/{where} {words}" in refusal()
