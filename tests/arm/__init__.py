"""The device side on emulated aarch64 processors: run by `make test-arm`."""
