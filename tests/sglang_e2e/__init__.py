"""Real servers of SGLang, and of vLLM beside them, on one pool."""
