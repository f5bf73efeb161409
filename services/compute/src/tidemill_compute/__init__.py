"""The compute service: event timelines, views and actions, each kept at exactly what its inputs
say.
"""
