"""The process around services: what it opens, which work it claims, and how that work is
supervised.
"""
