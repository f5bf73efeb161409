"""The conformance cases: read case files, run every case on the product, compare the answers."""
