"""Coding agents behind one interface. A new agent is a new module here that registers itself."""
