"""What a run measures, as records: histograms, counts, the machine."""
