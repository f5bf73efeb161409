"""The ingest service: reads sources from where they resume and decodes what they hold."""
