"""Loads a network's weights from a file, in whatever layout a training saved them."""

from marina.archiver.weights.state_dicts import load_weights

__all__ = ["load_weights"]
