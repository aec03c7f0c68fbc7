"""The spec, the record of a package, the files that TorchServe reads, the errors, and what else several packages need:
the machine's limits, free ports, the edges of latency histograms, the lines of progress. Any package may import this
one; it imports no other package of Marina, and never torch."""
