"""From one trainable torch module to one verified training artifact (where torch and runtimes meet)."""
