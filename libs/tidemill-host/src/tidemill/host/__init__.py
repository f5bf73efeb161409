"""The process around services: what it opens, which work it claims, and how that work is
supervised.

Importing it before Arrow lets all columns come from the C library (`columns_of_the_library`).
"""

from tidemill.runtime.lifecycle import columns_of_the_library

columns_of_the_library()
