"""The conformance kit: a scripted coordinator that any agent can be run against. docs/conformance.md."""
