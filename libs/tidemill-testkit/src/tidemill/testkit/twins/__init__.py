"""Obvious twins: each says in the plainest way what a kernel must answer, at any cost."""
