"""Graphs W without the n × n matrix: streamed, random features, sparse, neighbours, automatic choice."""
