"""Rules of prose in STYLE.md that a program can check."""
