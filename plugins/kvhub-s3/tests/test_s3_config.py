"""Options: what is refused before anything connects, what they resolve to, and that secrets stay unseen."""

from __future__ import annotations

import subprocess
import sys

import obstore
import pytest
from s3server import ACCESS, SECRET

from kvhub.options import build
from kvhub_s3.client import SIGNED_FOR, Client
from kvhub_s3.config import BucketConfig, Secrets, named_secrets
from kvhub_s3.rest import signature


def problems(**options: object) -> list[str]:
    told: list[str] = []
    build(BucketConfig, {"bucket": "kv-pool"} | options, "stores.pool", lambda path, why: told.append(f"{path}: {why}"))
    return told


def made(**options: object) -> BucketConfig:
    config = build(BucketConfig, {"bucket": "kv-pool"} | options, "p", lambda path, why: pytest.fail(f"{path}: {why}"))
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket": "Kv_Pool"}, "stores.pool.bucket: expected a bucket's name"),
        ({"bucket": "a/b/c"}, "stores.pool.bucket: expected a bucket's name"),
        ({"prefix": "/x"}, "stores.pool.prefix: expected words"),
        ({"prefix": "x//y"}, "stores.pool.prefix: expected words"),
        ({"prefix": "../x"}, "stores.pool.prefix: expected words"),
        ({"endpoint": "s3.example.com"}, "stores.pool.endpoint: expected an address such as https://"),
        ({"endpoint": "https://s3.example.com/bucket"}, "without bucket, path or query"),
        ({"endpoint": f"https://{ACCESS}:hidden@s3.example.com"}, "an address takes no credentials"),
        ({"endpoint": "http://s3.example.com"}, "is in the clear"),
        ({"endpoint": "http://10.0.0.7:9000"}, "use https, or say allow_http: true"),
        ({"workers": 0}, "stores.pool.workers: expected a number of workers from 1 to 256"),
        ({"part_size": "1MiB"}, "stores.pool.part_size: expected a part of 5MiB to 1GiB"),
        ({"stall_timeout": "0s"}, "stores.pool.stall_timeout: expected a time from 50ms to 600s"),
        ({"credentials": {"env": "KVHUB_S3"}}, "which is kept for options"),
        ({"credentials": {"env": "a b"}}, "expected the beginning of variables' names"),
        ({"credentials": {"key": "x"}}, "unknown option"),
        ({"access_key_id": "x"}, "stores.pool.access_key_id: unknown option"),
    ],
)
def test_what_cannot_work_is_told_by_its_path(options: dict[str, object], words: str) -> None:
    told = problems(**options)
    assert any(words in line for line in told), told
    assert "hidden" not in str(told)


@pytest.mark.parametrize(
    ("options", "environ", "base"),
    [
        ({}, {}, "https://kv-pool.s3.us-east-1.amazonaws.com"),
        ({"region": "eu-west-1"}, {"AWS_REGION": "x"}, "https://kv-pool.s3.eu-west-1.amazonaws.com"),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-2"}, "https://kv-pool.s3.eu-west-2.amazonaws.com"),
        ({"path_style": True}, {}, "https://s3.us-east-1.amazonaws.com/kv-pool"),
        ({"endpoint": "https://s3.x:9000/"}, {}, "https://s3.x:9000/kv-pool"),
        ({"endpoint": "https://s3.x", "path_style": False}, {}, "https://kv-pool.s3.x"),
        ({}, {"AWS_ENDPOINT_URL": "https://s3.y"}, "https://s3.y/kv-pool"),
        ({"endpoint": "http://[::1]:9000"}, {}, "http://[::1]:9000/kv-pool"),
        ({"endpoint": "http://10.0.0.7", "allow_http": True}, {}, "http://10.0.0.7/kv-pool"),
    ],
)
def test_where_the_bucket_is(options: dict[str, object], environ: dict[str, str], base: str) -> None:
    assert made(**options).base(environ) == base


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({}, "https://kv-pool.s3.us-east-1.amazonaws.com/a/b?"),
        ({"path_style": True, "region": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/kv-pool/a/b?"),
        ({"endpoint": "https://s3.x:9000"}, "https://s3.x:9000/kv-pool/a/b?"),
        ({"endpoint": "https://s3.x:9000", "path_style": False}, "https://kv-pool.s3.x:9000/a/b?"),
    ],
)
def test_what_is_asked_for(options: dict[str, object], begins: str) -> None:
    """The address as obstore signs it, which tells how it was set up."""
    client = Client(made(**options), Secrets(ACCESS, SECRET, "token"))
    client.open()
    url = obstore.sign(client._reading(), "GET", "a/b", SIGNED_FOR)
    client.close()
    assert url.startswith(begins)
    assert "X-Amz-Security-Token=token" in url
    assert SECRET not in url


def test_an_address_in_the_clear_is_refused_from_the_environment_too() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        made().base({"AWS_ENDPOINT_URL": "http://10.0.0.7"})


def test_secrets_are_not_shown() -> None:
    config = made(credentials={"env": "POOL"})
    environ = {"POOL_ACCESS_KEY_ID": ACCESS, "POOL_SECRET_ACCESS_KEY": SECRET, "POOL_SESSION_TOKEN": "token"}
    found = named_secrets(config, "pool", environ)
    assert found == Secrets(ACCESS, SECRET, "token")
    assert repr(found) == "Secrets()"


def test_check_prints_no_secret(tmp_path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "kvhub: 1\nstores:\n  pool: {use: s3, bucket: kv-pool, credentials: {env: KVTEST}}\n"
        "roles:\n  both:\n    store: [pool]\n    retrieve: [pool]\n"
    )
    code = "import sys; from kvhub.cli import main; sys.exit(main())"
    ended = subprocess.run([sys.executable, "-c", code, "check", path], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "kv-pool" in ended.stdout
    assert SECRET not in ended.stdout + ended.stderr


def test_the_signature_is_the_one_of_the_standard() -> None:
    """The example "GET Bucket Lifecycle" of AWS's page on the Authorization header."""
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256": empty,
        "x-amz-date": "20130524T000000Z",
    }
    secrets = Secrets("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    made = signature(secrets, "us-east-1", "GET", "/", "lifecycle=", headers, "20130524T000000Z")
    assert made.endswith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
