"""`use: aes`: chunks are encrypted before they leave the machine, with AES-256-GCM and keys from the environment.

`keys` reads keys and names them, `codec` encrypts and decrypts.
"""

from kvhub import hookimpl
from kvhub_aes.codec import AesCodec, AesConfig
from kvhub_aes.keys import KeySource

__version__ = "0.1.0"
__all__ = ["AesCodec", "AesConfig", "KeySource", "kvhub_register_codecs"]


@hookimpl
def kvhub_register_codecs() -> tuple[type[AesCodec], ...]:
    return (AesCodec,)
