"""A file system of our own that fails on demand: FUSE over a directory, in a process of its own.

`server` is the file system, `mount` mounts it for a test and tells it which calls are to fail, and how.
"""
