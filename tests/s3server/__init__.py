"""A real S3 server for tests and the demo, and a proxy before it that makes it fail on demand."""

from s3server.proxy import Fault, FaultProxy
from s3server.server import ACCESS, SECRET, NoServer, Server, find, running

__all__ = ["ACCESS", "SECRET", "Fault", "FaultProxy", "NoServer", "Server", "find", "running"]
