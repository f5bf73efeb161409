"""`python -m tidemill.testkit.conformance PATH...`: the conformance command without the rest."""

import typer

from tidemill.testkit.conformance.command import conformance

if __name__ == "__main__":
    typer.run(conformance)
