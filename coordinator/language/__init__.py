"""Language models in files: folders of public models, what is trained merged into them, adapters, and other formats."""
