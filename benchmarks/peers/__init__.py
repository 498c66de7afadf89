"""One federation of eight processes on loopback, by this project and by two peers in turn.

``python -m benchmarks.peers``; ``apps/`` holds what a user writes for each; nothing of the peers themselves is here.
"""
