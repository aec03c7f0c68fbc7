"""The spec, the files that TorchServe reads, and the errors. Any package may import this one; it imports no other
package of Marina, and never torch."""
