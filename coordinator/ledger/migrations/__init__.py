"""The steps from one version of the ledger's tables to the next; ``coordinator.ledger.schema`` takes them."""
