"""Commands on files and stores, without a server."""
