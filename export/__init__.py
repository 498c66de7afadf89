"""From one trainable torch module to one verified training artifact (the only package where torch and runtimes meet)."""
