"""Give the CPU engine the distribution name that it asks for: `python shim.py VERSION SITE_PACKAGES`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    version, site = sys.argv[1], Path(sys.argv[2])
    for stale in site.glob("vllm-*.dist-info"):
        for file in stale.iterdir():
            file.unlink()
        stale.rmdir()
    info = site / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("kvhub-tests\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


if __name__ == "__main__":
    main()
