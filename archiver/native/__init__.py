"""Compiles Marina's own C++: the decoder that `text.engine: aot` runs."""

from marina.archiver.native.decoder import compile_decoder

__all__ = ["compile_decoder"]
