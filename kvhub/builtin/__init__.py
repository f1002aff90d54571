"""Members that come with the core, registered through the same hook as everyone's."""
