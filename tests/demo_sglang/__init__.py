"""The demos with SGLang: `make demo-sglang` and `make demo-cross`."""
