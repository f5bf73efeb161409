"""HTTP for users: a thin translation of calls, in the frame of all calls."""
