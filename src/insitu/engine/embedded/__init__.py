"""The embedded engine: continuous batching over a Hugging Face decoder, in torch."""
