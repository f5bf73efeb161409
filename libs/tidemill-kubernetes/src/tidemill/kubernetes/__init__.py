"""Calling an API server of Kubernetes; what we know of its errors is in the classes of
`tidemill.time`.
"""
