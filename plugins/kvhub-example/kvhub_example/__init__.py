"""A store and a codec to learn from: `use: example` keeps one file for each chunk, `codec: example` deflates them."""

from kvhub import hookimpl
from kvhub_example.codec import ExampleCodec, ExampleCodecConfig
from kvhub_example.store import ExampleConfig, ExampleStore

__version__ = "0.1.0"
__all__ = [
    "ExampleCodec",
    "ExampleCodecConfig",
    "ExampleConfig",
    "ExampleStore",
    "kvhub_register_codecs",
    "kvhub_register_stores",
]


@hookimpl
def kvhub_register_stores() -> tuple[type[ExampleStore], ...]:
    return (ExampleStore,)


@hookimpl
def kvhub_register_codecs() -> tuple[type[ExampleCodec], ...]:
    return (ExampleCodec,)
