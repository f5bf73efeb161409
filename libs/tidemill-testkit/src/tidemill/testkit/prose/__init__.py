"""Rules of prose in STYLE.md that a program can check, and recorded counts of their breaches."""
