"""Who may connect and whose orders devices follow: an authority in a folder, certificates, claim tokens, signatures.

``authority`` issues and revokes, ``certificates`` builds X.509, ``records`` remembers, ``claims`` trades tokens for
certificates, ``signing`` signs manifests and orders, ``access`` writes Mosquitto's topic rules.
"""
