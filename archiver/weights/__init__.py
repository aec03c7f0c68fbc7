"""The weights of a network, out of the files and the layers of names that trainings save them in."""

from archiver.weights.state import load_weights

__all__ = ["load_weights"]
