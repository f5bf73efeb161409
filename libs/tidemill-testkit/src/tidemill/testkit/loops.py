"""`make loops`: write the signatures of loops that `tidemill.host.warming` compiles.

They are those of the machine code that tests and demo have left, beside those that are written
already, of loops that are still there.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from contextlib import suppress
from importlib import import_module

from tidemill.arrangement.kernels.kept_code import compiled_for
from tidemill.arrangement.kernels.signatures import signature_of, signature_text
from tidemill.arrangement.machine_code import FOLDERS
from tidemill.host.warming import SIGNATURES, signatures


def main() -> None:
    """Write the file anew."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for wanted in signatures():
        with suppress(ImportError, AttributeError):
            loop = getattr(import_module(wanted.module), wanted.loop)
            if len(inspect.signature(loop).parameters) == len(signature_of(wanted.arguments)):
                found[wanted.module][wanted.loop].add(wanted.arguments)
    for folder in FOLDERS.readable():
        for file in folder.iterdir():
            with suppress(ImportError, AttributeError, EOFError, TypeError):  # torn, or no text
                module, name, arguments = compiled_for(FOLDERS.read(file.name) or b"")
                loop = getattr(import_module(module), name)
                if module.startswith("tidemill.") and file.name.endswith(loop._cache.source):
                    found[module][name].add(signature_text(arguments))
    lines = []
    for module, loops in sorted(found.items()):
        lines.append(f'["{module}"]')
        for name, texts in sorted(loops.items()):
            lines += [f"{name} = [", *(f'  "{text}",' for text in sorted(texts)), "]"]
        lines.append("")
    SIGNATURES.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
