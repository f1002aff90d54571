"""`kvhub doctor`: looks at a machine with a configuration in hand, before an engine does; `examine` returns findings.

`machine` is memory, limits and RDMA devices, `installed` the plugins and engines, `filesystem` what stores keep chunks
on, `stores` and `transports` the members, each really opened and tried in a scratch namespace, and `canary` whether
keys and headers come out here as they do everywhere.  What only a plugin can know comes from `Member.diagnose`:
nothing here names a plugin.
"""

from kvhub.doctor.examine import examine, status

__all__ = ["examine", "status"]
