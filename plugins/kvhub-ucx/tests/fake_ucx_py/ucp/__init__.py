"""A stand-in for ucx-py, for tests only: the public index has no ucx-py that can be installed.

It has the parts that this plugin uses, with the habits of the real one that matter: it loads libucp when it is
imported, leaves UCX_* variables in the environment, makes handles with libucp itself (so that all of UCX is real), and
before it destroys a worker it receives every message that nobody asked for.
"""

import os

import libucx

os.environ.setdefault("UCX_MEMTYPE_CACHE", "n")
libucx.load_library()

from ucp._libs.ucx_api import get_ucx_version  # noqa: E402

for _name, _value in (
    ("RNDV_THRESH", "8192"),
    ("RNDV_FRAG_MEM_TYPE", "cuda"),
    ("MAX_RNDV_RAILS", "1"),
    ("PROTO_ENABLE", "n"),
):
    os.environ.setdefault(f"UCX_{_name}", _value)

__all__ = ["get_ucx_version"]
