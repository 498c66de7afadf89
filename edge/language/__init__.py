"""Text and a language model's symbols: a tokenizer's file, documents, and the windows that a model is trained on."""
