"""Drawings of what replicates from what: text, Mermaid, DOT, SVG."""
