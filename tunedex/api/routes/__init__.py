"""The routes, one file a subject; each has a `router`."""
