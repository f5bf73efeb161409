"""Other people's evaluators as oracles: a checked program in their notation, and what they derive
from it.
"""
