"""The generated pages of docs/reference, each a text made from the code that it describes."""
