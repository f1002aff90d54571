"""A store in a directory: an NFS mount that many hubs share (`use: nfs`), or a machine's own disk (`use: nfs/local`).

    <root>/<first 32 hex digits of the namespace digest>/
        namespace.json              what this namespace is, readable
        3f/a2/3fa2...c1.kv          one chunk: 4096 bytes of header, then the payload
        .tmp/<owner>/               files that a hub is writing; published by rename

`files` makes single files whole, `scratch` knows whose unfinished files they are, `probe` finds out at start whether
a directory can be worked in, and `store` is the store.
"""

from kvhub import hookimpl
from kvhub_nfs.store import DirectoryConfig, DirectoryStore, LocalStore

__version__ = "0.1.0"
__all__ = ["DirectoryConfig", "DirectoryStore", "LocalStore", "kvhub_register_stores"]


@hookimpl
def kvhub_register_stores() -> tuple[type[DirectoryStore], ...]:
    return (DirectoryStore, LocalStore)
