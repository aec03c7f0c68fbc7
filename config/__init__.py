"""The spec, what TorchServe reads, and the errors. Anything may import this package; it imports no other package of
Marina, and never torch."""
