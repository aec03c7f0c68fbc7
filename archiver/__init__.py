"""From a spec to a verified MAR. The only package besides `handlers` that imports torch; runs where models are
packaged, never where they are served."""
