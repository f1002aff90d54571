"""A store in an S3 bucket that many hubs share (`use: s3`).

    <prefix>/v1/<first 2 digits of the key>/<first 32 digits of the namespace digest>/<key>.kv
    <prefix>/v1/namespaces/<first 32 digits>/namespace.json      what that namespace is, readable
    <prefix>/v1/scratch/<random>                                 what a hub tries at start; removed at once

The key's digits come first so that a bucket that splits its load by prefix can split it evenly.

`config` is the options, `client` the calls on a bucket and their bounds in time, `download` the way of chunks into
their slots, `failures` what can go wrong in words, `probe` the try at start, `rest` and `uploads` what obstore cannot
do, `store` the store, `medium` with `leases` what housekeeping asks,
and `url` the object of an s3:// URL as a file.
"""

from collections.abc import Mapping
from typing import Any, BinaryIO

from kvhub import hookimpl
from kvhub_s3.config import BucketConfig, Credentials
from kvhub_s3.store import BucketStore

__version__ = "0.1.0"
__all__ = ["BucketConfig", "BucketStore", "Credentials", "kvhub_open_url", "kvhub_register_stores"]


@hookimpl
def kvhub_register_stores() -> tuple[type[BucketStore], ...]:
    return (BucketStore,)


@hookimpl
def kvhub_open_url(url: str, config: Mapping[str, Any]) -> BinaryIO | None:
    from kvhub_s3.url import open_url  # no hub needs it

    return open_url(url, config)
