"""What transports of one family share: the authenticated control connection, pairing, pulls, commits and their clocks.

A transport made of it brings a `Fabric` (what all its links share) whose lanes move bytes; everything that decides
whether a chunk may be believed is here, once.  `docs/transport.md` tells the protocol and the threat model.

    addresses  host:port texts                       greeting  how two hubs come to trust each other
    frames     what is said, and how it is sealed    link      one pairing: connection, lane, their end
    stream     plain or TLS sockets                  pull      the side that asks        arrivals   how bytes come in
    channel    frames over a stream                  serve     the side that has         departures how they go out
    lane       what a fabric must offer              target    one address that is pulled from
    mapped     another hub's arena on this machine   loop      the thread that owns all of it
    member     the `Transport` that the hub sees     options   what is configured
"""
