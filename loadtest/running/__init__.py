"""From a spec and a server to a verdict."""
