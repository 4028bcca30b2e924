"""Documentation, and what keeps its numbers true."""
