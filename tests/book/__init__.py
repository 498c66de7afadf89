"""Tests of the book: its generated parts, its links, its commands, the built site."""
