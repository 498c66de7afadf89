"""One file per version of the ledger's tables; written once, never edited."""
