"""Language models at the coordinator: where their values come from, the base file that is made of them, and the files
of public models, read and written."""
