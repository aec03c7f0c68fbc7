"""The spec, what TorchServe reads, and the errors. Anything may import this package; it imports none of ours, and
never torch."""
