"""The project that ``apportion init`` writes: a model, a data reader, a run file and a test, which run as they are."""
