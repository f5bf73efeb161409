"""Records of sources as rows: decoders, the schemas that they learn, and the decisions kept of
both.
"""
