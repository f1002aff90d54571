"""kvhub in real vLLM engines, always beside an engine that has no kvhub."""
