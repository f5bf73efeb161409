"""Views: each kept at exactly what its program says of its inputs."""
