"""The port that peers knock at."""

from __future__ import annotations

import errno
import socket

from kvhub.errors import KvhubError
from kvhub.wire import addresses, options
from kvhub.wire.options import WireConfig

_MOST_AT_ONCE = 16


class Listener:
    """A bound and listening socket; `address` is what peers are told.  Raises KvhubError when it cannot be had."""

    def __init__(self, config: WireConfig, name: str) -> None:
        host, port = addresses.parse(config.listen)
        try:
            family, address = addresses.resolve(host, port)
            self._sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise self._error(config, name, error) from error
        try:
            # A hub that restarts finds its port in TIME_WAIT.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(address)
            self._sock.listen(64)
            self._sock.setblocking(False)
            self.fd = self._sock.fileno()
            self.address = options.advertised(config, name, host, self._sock.getsockname()[1])
        except OSError as error:
            self._sock.close()
            raise self._error(config, name, error) from error
        except KvhubError:
            self._sock.close()
            raise

    @staticmethod
    def _error(config: WireConfig, name: str, error: OSError) -> KvhubError:
        hint = {
            errno.EADDRINUSE: "choose another port, or port 0",
            errno.EADDRNOTAVAIL: "this machine has no such address; `ip addr` shows those it has",
        }.get(error.errno or 0, "check the option `listen`")
        owner = addresses.owner_of_port(addresses.parse(config.listen)[1]) if error.errno == errno.EADDRINUSE else ""
        by = f" by {owner}" if owner else ""
        return KvhubError(f"{name}: cannot listen on {config.listen}: {error.strerror}{by}; {hint}")

    def accept(self) -> list[tuple[socket.socket, str]]:
        """(connection, its address as text) of some that wait; never blocks."""
        found = []
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except OSError:
                break
            found.append((sock, addresses.show(str(address[0]), address[1])))
        return found

    def close(self) -> None:
        self._sock.close()
