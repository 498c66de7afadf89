"""Language models at the coordinator: where their values come from, and the base file that is made of them."""
