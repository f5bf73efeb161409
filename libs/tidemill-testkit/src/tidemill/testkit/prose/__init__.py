"""Rules of prose in STYLE.md that a program can check, and the recorded counts of their breaches."""
