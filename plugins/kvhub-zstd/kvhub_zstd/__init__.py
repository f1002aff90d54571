"""`codec: zstd`: payloads come back bit for bit, and take two thirds of the room where they are 16-bit floats.

`planes` cuts items into planes of bytes and joins them; `codec` decides which planes are worth compressing.
"""

from kvhub import hookimpl
from kvhub_zstd.codec import ZstdCodec, ZstdConfig

__version__ = "0.1.0"
__all__ = ["ZstdCodec", "ZstdConfig", "kvhub_register_codecs"]


@hookimpl
def kvhub_register_codecs() -> tuple[type[ZstdCodec], ...]:
    return (ZstdCodec,)
