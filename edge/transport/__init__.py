"""Connections to a broker: what they give (:mod:`.base`), MQTT (:mod:`.mqtt`), in one process (:mod:`.in_memory`)."""
