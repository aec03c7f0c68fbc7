"""Builds a verified MAR from a spec. The only package besides `handlers` that imports torch; it runs where models are
packaged, never where they are served."""
