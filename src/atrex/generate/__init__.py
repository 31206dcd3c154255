"""Candidates by coding agents: a workspace, a prompt, an agent, a transcript, and a file that the judge can judge."""
