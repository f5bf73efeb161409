"""Every parser and decoder under random bytes: what it may raise is written down, and it does not
die.
"""
