"""Calls of a Kubernetes API server; failures are errors of `tidemill.errors`."""
