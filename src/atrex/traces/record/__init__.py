"""Recording a trace of a running process, of a program to start, or through a serving engine's own endpoints."""
