"""`codec: quant/fp8` and `quant/int8`: KV in 8 bits, with a scale per layer, token, head and K or V.

`view` finds keys and values in a payload by its layout; `floats` turns 16-bit floats into 32-bit ones, and numbers into
fp8 codes; `codec` is the codecs.
"""

from kvhub import hookimpl
from kvhub_quant.codec import Fp8Codec, Int8Codec, QuantConfig

__version__ = "0.1.0"
__all__ = ["Fp8Codec", "Int8Codec", "QuantConfig", "kvhub_register_codecs"]


@hookimpl
def kvhub_register_codecs() -> tuple[type[Fp8Codec] | type[Int8Codec], ...]:
    return (Fp8Codec, Int8Codec)
