"""`python -m tidemill.client` is the command."""

from tidemill.client.command import main

main()
