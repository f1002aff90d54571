"""The C part is optional: without a compiler the package installs and copies through torch."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "kvhub_kernels._native",
            sources=["kvhub_kernels/native.c"],
            extra_compile_args=["-O3", "-std=gnu11", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
