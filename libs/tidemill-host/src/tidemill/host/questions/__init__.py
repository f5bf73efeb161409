"""Questions about history: work beside the event loop, inputs over time, proofs."""
