"""Semantic work, ceilings and what bounds a unit."""
