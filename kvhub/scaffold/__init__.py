"""`kvhub new-plugin`: a complete package to begin from.

`files` says what a package of each kind consists of, `names` what it may be called, `command` writes it.  The templates
are those of `plugins/kvhub-example` with other names in them; tests hold the two together.
"""
