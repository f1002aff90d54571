"""`make demo-sglang` and `make demo-cross` in short, on servers that both share: what CI runs of them.

Two turns on a prefill and a decode engine of SGLang; then, in a pool that was emptied, three turns by turns with vLLM,
so that each engine takes the other's.  The same comparisons and the same controls; no engine is started again between.
"""

from __future__ import annotations

import sys

from demo.frame import parser, shown
from demo.progress import say
from harness.paths import ROOT, model

from demo_sglang import cross, pd
from demo_sglang.asking import Sglang, Vllm, laid_out, started

HOME = ROOT / ".demo" / "short"
NEVER = 0


def main() -> int:
    given = parser(__doc__, 2).parse_args()

    def playing() -> tuple[str, list[str]]:
        pool, config = laid_out(HOME)
        weights = model(given.model)
        sglang = pd.engines(HOME, config, weights)
        vllm = cross.vllm_engines(HOME, config, weights)
        say(f"starting three SGLang and two vLLM engines (logs and pool in {HOME.relative_to(ROOT)}/)")
        with started(*sglang, *vllm):
            prefill, decode, plain = (Sglang(engine) for engine in sglang)
            table, problems = pd.judged(pd.Deployment(prefill, decode, plain, pool), 2)
            pool.empty()
            for engine in (prefill, plain):
                engine.forget()
            shared = cross.Both((Vllm(vllm[0]), prefill), (Vllm(vllm[1]), plain), pool)
            other, more = cross.judged(shared, 3, restarted=NEVER)
        return f"{table}\n{other}", [*problems, *more]

    return shown(playing, HOME)


if __name__ == "__main__":
    sys.exit(main())
