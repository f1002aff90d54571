"""`kvhub bench`: how fast each member and each route of a role is here, beside what this machine could do at best.

`bounds` is the machine's own speeds (memory, the same file system, a bare socket), taken in the same run as what is
held against them; `members` moves chunks through one member, `routes` through a whole hub; `advice` makes of it what a
file should say; `run` is the order of it all.  Everything happens in a scratch namespace and is removed.
"""

from kvhub.bench.run import Plan, Report, run

__all__ = ["Plan", "Report", "run"]
