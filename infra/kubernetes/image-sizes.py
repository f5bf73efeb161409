#!/usr/bin/env python3
"""The images in an archive of OCI: image-sizes.py ARCHIVE prints each with its size, and what all
of them take together. Exit status 1 if the image of a service is larger than its limit.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter

SERVICE_MB_MAX = 180
"""Size of the image of one service, in MB to fetch."""


def sizes(archive: str) -> list[tuple[str, int, int]]:
    """(image, compressed bytes of its layers, bytes of those that no other image has); the last one
    is all of them.
    """
    with tarfile.open(archive) as file:

        def document(name: str) -> dict:
            found = file.extractfile(f"./{name}")
            assert found is not None
            return json.load(found)

        layers = {}
        for entry in document("index.json")["manifests"]:
            manifest = document("blobs/" + entry["digest"].replace(":", "/"))
            name = entry["annotations"]["org.opencontainers.image.ref.name"]
            layers[name] = {each["digest"]: each["size"] for each in manifest["layers"]}
    users = Counter(digest for each in layers.values() for digest in each)
    found = [
        (name, sum(each.values()), sum(size for digest, size in each.items() if users[digest] == 1))
        for name, each in layers.items()
    ]
    together = {digest: size for each in layers.values() for digest, size in each.items()}
    return [*found, ("together", sum(together.values()), sum(together.values()))]


if __name__ == "__main__":
    found = sizes(sys.argv[1])
    for name, size, own in found:
        print(f"{name}: {size / 1e6:.0f} MB, {own / 1e6:.2f} of them its own")
    large = [n for n, size, _ in found if "/tidemill-" in n and size > SERVICE_MB_MAX * 1e6]
    if large:
        sys.exit(f"larger than {SERVICE_MB_MAX} MB: {', '.join(large)}")
