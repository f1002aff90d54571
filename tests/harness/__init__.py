"""What the demo and the end-to-end tests use to run real engines and hold their outputs against each other.

`leash` runs a command whose whole process tree dies with whoever started it; `processes` starts and stops such
commands; `serving` is `vllm serve`; `zygote` and `forked` are engines forked from one process that has imported
vLLM, for suites; `outputs` compares; `metrics` reads Prometheus text; `paths` says where the checkout keeps things.
"""
