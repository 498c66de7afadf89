"""The web server that phones come to: the page of the agent for browsers, claims and blobs, at one address."""
