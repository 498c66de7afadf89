"""What a large fleet would take: rounds, bytes, brokers, coordinators and money, reckoned from a file of figures."""
